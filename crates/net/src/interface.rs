//! The addresses of this host's network interfaces.

use sheave_base::{Error, ErrorKind, Result};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Returns the address of a network interface: its first IPv4 address, or its first IPv6 one that needs no scope.
///
/// ```
/// assert!(sheave_net::interface::address_of("lo")?.is_loopback());
/// # Ok::<(), sheave_base::Error>(())
/// ```
///
/// # Errors
///
/// `InvalidArgument` that lists the interfaces if there is none of this name, or it has no address.
pub fn address_of(name: &str) -> Result<IpAddr> {
    let all = addresses()?;
    let own = all.iter().filter(|(interface, _)| interface == name).filter_map(|(_, address)| *address);
    if let Some(address) = own.filter(needs_no_scope).min_by_key(IpAddr::is_ipv6) {
        return Ok(address);
    }
    let is_there = all.iter().any(|(interface, _)| interface == name);
    let what = if is_there { "has no address" } else { "does not exist on this host" };
    let mut names: Vec<&str> = all.iter().filter(|one| one.1.is_some()).map(|one| one.0.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    Err(Error::new(ErrorKind::InvalidArgument, format!("the network interface \"{name}\" {what}"))
        .hint(format!("those with an address are {}", names.join(", "))))
}

/// Returns an address by which other hosts may know this one: its first IPv4 address that is not loopback, or its first
/// such IPv6 one; loopback if there is neither, for then all who reach it are on this host.
///
/// ```
/// assert!(!sheave_net::interface::outward()?.is_unspecified());
/// # Ok::<(), sheave_base::Error>(())
/// ```
///
/// # Errors
///
/// `Io` if the system does not list the interfaces.
pub fn outward() -> Result<IpAddr> {
    let all = addresses()?;
    let usable = all.iter().filter_map(|(_, address)| *address).filter(needs_no_scope);
    Ok(preferred(usable))
}

fn preferred(addresses: impl Iterator<Item = IpAddr>) -> IpAddr {
    let outward = addresses.filter(|address| !address.is_loopback()).min_by_key(IpAddr::is_ipv6);
    outward.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST))
}

fn needs_no_scope(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(_) => true,
        IpAddr::V6(address) => !address.is_unicast_link_local(),
    }
}

/// Every interface, once for each of its addresses, in the order of the system.
fn addresses() -> Result<Vec<(String, Option<IpAddr>)>> {
    let mut list: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: `list` is a place for the pointer that the call fills in.
    if unsafe { libc::getifaddrs(&raw mut list) } != 0 {
        return Err(Error::from(std::io::Error::last_os_error()).context("listing the network interfaces"));
    }
    let mut found = Vec::new();
    let mut next = list;
    while !next.is_null() {
        // SAFETY: `next` is an entry of the list, which is not freed before the loop ends.
        let entry = unsafe { &*next };
        // SAFETY: the name is a text that ends with a zero and lives as long as the list.
        let name = unsafe { std::ffi::CStr::from_ptr(entry.ifa_name) }.to_string_lossy().into_owned();
        // SAFETY: the address is null or one of the family that it names, and lives as long as the list.
        found.push((name, unsafe { ip_of(entry.ifa_addr) }));
        next = entry.ifa_next;
    }
    // SAFETY: the list is the call's above, and nothing points into it any more.
    unsafe { libc::freeifaddrs(list) };
    Ok(found)
}

/// # Safety
///
/// `address` is null, or points to a whole socket address of its family.
unsafe fn ip_of(address: *const libc::sockaddr) -> Option<IpAddr> {
    if address.is_null() {
        return None;
    }
    // SAFETY: every socket address begins with its family.
    match i32::from(unsafe { (*address).sa_family }) {
        libc::AF_INET => {
            // SAFETY: the family says what it is; it need not be aligned as that.
            let address = unsafe { address.cast::<libc::sockaddr_in>().read_unaligned() };
            Some(Ipv4Addr::from_bits(u32::from_be(address.sin_addr.s_addr)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: the family says what it is; it need not be aligned as that.
            let address = unsafe { address.cast::<libc::sockaddr_in6>().read_unaligned() };
            Some(Ipv6Addr::from(address.sin6_addr.s6_addr).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outward_address_is_loopback_only_where_there_is_no_other() {
        let addresses = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<IpAddr>>();
        for (texts, expected) in [
            (&["127.0.0.1", "::1"][..], "127.0.0.1"),
            (&["127.0.0.1", "fd00::2", "10.0.0.2", "10.0.1.2"], "10.0.0.2"),
            (&["127.0.0.1", "::1", "fd00::2"], "fd00::2"),
        ] {
            assert_eq!(preferred(addresses(texts).into_iter()), addresses(&[expected])[0]);
        }
    }

    #[test]
    fn loopback_has_its_address_and_what_does_not_exist_is_named_beside_what_does() {
        assert_eq!(address_of("lo").expect("every host has it"), IpAddr::V4(Ipv4Addr::LOCALHOST));
        let error = address_of("nosuch0").expect_err("it does not exist");
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert_eq!(error.what(), "the network interface \"nosuch0\" does not exist on this host");
        assert!(error.advice().expect("it helps").contains("lo"), "{error}");
    }
}
