//! Hosts and guests of one process.

#![allow(dead_code, reason = "each test binary uses its part")]

use super::{config, free_port, secret};
use sheave_base::config::Transport;
use sheave_base::{ErrorKind, Result};
use sheave_mesh::{AttachedGuest, Expected, Guest, GuestConfig, Invitation, Mesh, Role};

/// A mesh of one node.
pub(crate) fn host(transport: Transport) -> Mesh {
    Mesh::join(config(Role::Rank, Some(0), Expected::ranks(1), free_port(), transport)).expect("nobody else is needed")
}

pub(crate) fn guest_config(invitation: &Invitation, transport: Transport) -> GuestConfig {
    // As it comes through an environment.
    let mut config = GuestConfig::new(invitation.to_text().parse().expect("it was written so"));
    config.node.secret = secret("known to the tests alone");
    config.node.transport = transport;
    config.node.local_ranks = 4;
    config
}

/// Invites a guest and attaches it.
pub(crate) fn attach(mesh: &Mesh, transport: Transport) -> (Guest, AttachedGuest) {
    let invitation = mesh.invite("guest").expect("there is room");
    let arrival = mesh.guest_arrival(invitation.name()).expect("it is invited");
    let guest = Guest::attach(guest_config(&invitation, transport)).expect("it is invited");
    (guest, super::wait(&arrival).expect("it has come"))
}

/// The error of something that must fail, and its kind.
pub(crate) fn refused<T>(what: Result<T>) -> (ErrorKind, String) {
    match what {
        Ok(_) => panic!("it was to fail"),
        Err(error) => (error.kind(), error.to_string()),
    }
}
