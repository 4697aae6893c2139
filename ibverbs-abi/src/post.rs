//! Posting: the calls of the data path.
