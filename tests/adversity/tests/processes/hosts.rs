//! Hosts: network namespaces, each held by a thread, which end with the test whatever becomes of it.

use std::fs::File;
use std::io::Read;
use std::net::Ipv4Addr;
use std::os::fd::AsRawFd;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Sender, channel};

use super::wire::Way;

type Task = Box<dyn FnOnce() + Send>;

/// A machine of its own, as far as the network goes.
pub(crate) struct Host {
    tasks: Sender<Task>,
    pub(crate) address: Ipv4Addr,
}

/// The name of the device at each end of the wire.
const DEVICE: &str = "wire0";

impl Host {
    /// A host with nothing but a loopback device; or what is missing for one.
    pub(crate) fn alone() -> Result<Host, String> {
        let (tasks, work) = channel::<Task>();
        let (told, outcome) = channel();
        std::thread::spawn(move || {
            // SAFETY: only this thread changes its namespace, and no descriptors are shared away.
            let entered = unsafe { libc::unshare(libc::CLONE_NEWNET) };
            let ready = match entered {
                0 => ip(&["link", "set", "lo", "up"]),
                _ => Err(format!("network namespaces: {}", std::io::Error::last_os_error())),
            };
            let is_ready = ready.is_ok();
            let _ = told.send(ready);
            if is_ready {
                work.into_iter().for_each(|task| task());
            }
        });
        outcome.recv().expect("the thread answers")?;
        Ok(Host { tasks, address: Ipv4Addr::LOCALHOST })
    }

    /// Runs `act` on a thread that is on this host; processes that it starts are there too.
    pub(crate) fn run<T: Send + 'static>(&self, act: impl FnOnce() -> T + Send + 'static) -> T {
        let (told, outcome) = channel();
        let task = Box::new(move || {
            let _ = told.send(act());
        });
        self.tasks.send(task).expect("the host stands");
        outcome.recv().expect("nothing panics there")
    }

    /// Gives the host a device with this address, and returns the file through which its packets come and go.
    fn plug(&mut self, address: Ipv4Addr, peer: Ipv4Addr) -> Result<File, String> {
        self.address = address;
        self.run(move || {
            let device = tunnel()?;
            ip(&["addr", "add", &format!("{address}/32"), "dev", DEVICE])?;
            ip(&["link", "set", DEVICE, "up"])?;
            ip(&["route", "add", &format!("{peer}/32"), "dev", DEVICE])?;
            Ok(device)
        })
    }

    /// The ports that somebody listens on.
    pub(crate) fn listening(&self) -> Vec<String> {
        self.run(|| {
            let mut text = String::new();
            // Of the thread's namespace, not of the process's.
            for table in ["tcp", "tcp6"] {
                if let Ok(mut file) = File::open(format!("/proc/thread-self/net/{table}")) {
                    file.read_to_string(&mut text).expect("the kernel tells");
                }
            }
            let fields = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
            let listens = fields.filter(|fields| fields.get(3) == Some(&"0A"));
            listens.map(|fields| fields[1].to_owned()).collect()
        })
    }
}

/// Two hosts and the two ways of the wire between them.
pub(crate) struct Hosts {
    pub(crate) near: Host,
    pub(crate) far: Host,
    pub(crate) there: Way,
    pub(crate) back: Way,
}

impl Hosts {
    /// Two hosts with their usual addresses.
    pub(crate) fn new() -> Result<Hosts, String> {
        let (near, far) = (Ipv4Addr::new(10, 77, 0, 1), Ipv4Addr::new(10, 77, 0, 2));
        Hosts::with((near, far), (far, near))
    }

    /// Two hosts with these addresses, and the ones under which they reach each other.
    pub(crate) fn with(own: (Ipv4Addr, Ipv4Addr), peers: (Ipv4Addr, Ipv4Addr)) -> Result<Hosts, String> {
        let (mut near, mut far) = (Host::alone()?, Host::alone()?);
        let (here, yonder) = (near.plug(own.0, peers.0)?, far.plug(own.1, peers.1)?);
        let (there, back) = (Way::default(), Way::default());
        let copy = |file: &File| file.try_clone().map_err(|error| error.to_string());
        there.carry(copy(&here)?, copy(&yonder)?, 1);
        back.carry(yonder, here, 2);
        Ok(Hosts { near, far, there, back })
    }
}

/// Opens a tunnel device in the namespace of this thread.
fn tunnel() -> Result<File, String> {
    let missing = |error: std::io::Error| format!("the device /dev/net/tun: {error}");
    let file = File::options().read(true).write(true).open("/dev/net/tun").map_err(missing)?;
    // SAFETY: zeros are a valid value of this C structure.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (place, letter) in request.ifr_name.iter_mut().zip(DEVICE.bytes()) {
        *place = letter as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI) as libc::c_short;
    // SAFETY: the request is what this call reads and writes, and lives until it returns.
    match unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut request) } {
        0 => Ok(file),
        _ => Err(missing(std::io::Error::last_os_error())),
    }
}

fn ip(words: &[&str]) -> Result<(), String> {
    let output = Command::new("ip").args(words).stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("the program ip: {error}; hint: apt-get install iproute2"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("ip {}: {}", words.join(" "), String::from_utf8_lossy(&output.stderr).trim()))
}

/// What a test needs from the machine, or the end of the test, which says what is missing.
#[macro_export]
macro_rules! need {
    ($what:expr) => {
        match $what {
            Ok(found) => found,
            Err(missing) => {
                $crate::players::say(&format!("skipped: {missing}"));
                return;
            }
        }
    };
}
