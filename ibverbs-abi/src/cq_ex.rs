//! Completion queues that are read one completion after the other.
