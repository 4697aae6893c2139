//! Holds UDP port 4791, as Linux's rdma_rxe does, until it is killed: `hold-port ADDRESS...`.

use std::net::UdpSocket;
use std::process::ExitCode;

fn main() -> ExitCode {
    let bind = |address: String| UdpSocket::bind((address.as_str(), 4791));
    match std::env::args().skip(1).map(bind).collect::<Result<Vec<_>, _>>() {
        Ok(_sockets) => {
            println!("held");
            loop {
                std::thread::park();
            }
        }
        Err(error) => {
            eprintln!("hold-port: {error}");
            ExitCode::FAILURE
        }
    }
}
