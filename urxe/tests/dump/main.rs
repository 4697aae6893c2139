//! `urxe dump` as a program: over the captures of the Linux driver, over captures made here in
//! every format and link type, over damaged ones and over garbage.

// A test may unwrap in its helpers too.
#![allow(clippy::unwrap_used)]

mod conversations;
mod damage;
mod foreign;
mod formats;
mod golden;
mod headers;
mod messages;
mod super_frames;
mod support;
