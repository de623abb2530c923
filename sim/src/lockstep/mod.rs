//! Whole processes in one, in lockstep: the product as it is shipped, its threads, its waits, its sockets and all, on a
//! clock and a network that a seed determines.
//!
//! A simulated process is a program on a thread, and the threads that it starts. Of all threads of a [`World`] one runs
//! at a time, until it waits for something; then the world picks the next one, or, if none can go on, moves the clock
//! to whatever comes next ([`scheduler`]). What processes write to their sockets the world reads at the other end, and
//! carries it to where it belongs, later and in order, if nothing is in the way ([`network`]).
//!
//! **What a seed determines.** Who of those that can go on does; how long a thread is kept from its core; all that
//! programs draw; when messages arrive. Between two waits nothing of the product depends on anything else: its tables
//! have an order of their own ([`sheave_base::collections`]), and the sockets are of the kernel, but local ones, which
//! take and give bytes in a way that only what was done before determines.
//!
//! **The end of a process** takes its threads with it, wherever they wait: they are never run again. The system's
//! threads that they are cannot be ended, and stay until the program that simulates ends; so it simulates a few dozen
//! worlds and no more.

mod network;
mod scheduler;
mod world;

pub use network::Way;
pub use world::{Outcome, Trouble, World};
