//! HTTP in another process' network.

use std::fs::File;
use std::net::UdpSocket;
use std::os::fd::AsRawFd as _;
use std::thread;

/// Lets addresses of 127.0.0.1 be reached in the network namespace of a process, which was made without.
pub fn loopback_up(pid: u32) {
    let network = File::open(format!("/proc/{pid}/ns/net")).unwrap();
    let up = thread::spawn(move || {
        // SAFETY: takes a descriptor that is open and no pointer; only this thread, which ends here, changes over.
        assert_eq!(unsafe { libc::setns(network.as_raw_fd(), libc::CLONE_NEWNET) }, 0);
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        // SAFETY: zeros are an `ifreq` without name and flags.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        for (to, from) in request.ifr_name.iter_mut().zip(*b"lo") {
            *to = libc::c_char::try_from(from).unwrap();
        }
        request.ifr_ifru.ifru_flags = libc::c_short::try_from(libc::IFF_UP).unwrap();
        // SAFETY: a socket that is open and an `ifreq` that lives until the call returns; see netdevice(7).
        assert_eq!(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request) }, 0);
    });
    up.join().unwrap();
}

/// Asks a server in the network namespace of a process; `None` when it does not answer or refuses.
pub fn get(pid: u32, url: &str) -> Option<String> {
    let network = File::open(format!("/proc/{pid}/ns/net")).ok()?;
    let url = url.to_owned();
    let answer = thread::spawn(move || {
        // SAFETY: takes a descriptor that is open and no pointer; only this thread, which ends here, changes over.
        assert_eq!(unsafe { libc::setns(network.as_raw_fd(), libc::CLONE_NEWNET) }, 0);
        // A pool of connections of its own: in another network the address is another agent's.
        let agent = ureq::Agent::new_with_defaults();
        agent.get(url).call().ok()?.body_mut().with_config().limit(64 << 20).read_to_string().ok()
    });
    answer.join().unwrap()
}
