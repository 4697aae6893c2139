//! Links, threads and clocks that run the rxe-core engine.
