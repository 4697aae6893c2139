//! RDMA verbs in safe Rust, over a RoCE device in user space.
