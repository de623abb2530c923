//! What a process holds, for tests that count it.

/// Open descriptors of this process, and the bytes of shared memory that it has mapped.
pub(crate) fn held() -> (usize, u64) {
    let descriptors = std::fs::read_dir("/proc/self/fd").expect("proc").count();
    let maps = std::fs::read_to_string("/proc/self/maps").expect("proc");
    let mapped = maps.lines().filter(|line| line.contains("/memfd:sheave")).map(|line| {
        let (from, to) = line.split(' ').next().and_then(|range| range.split_once('-')).expect("a range");
        let address = |text| u64::from_str_radix(text, 16).expect("an address");
        address(to) - address(from)
    });
    (descriptors, mapped.sum())
}
