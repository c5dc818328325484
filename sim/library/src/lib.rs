//! `libtcuda_sim.so`: the exports of the crate `tcuda_sim`, with its allocator.

use sim::base::reserve::Backed;

#[global_allocator]
static ALLOCATOR: Backed = Backed;
