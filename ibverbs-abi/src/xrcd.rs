//! Domains of extended reliable connections.
