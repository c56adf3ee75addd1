//! Tells series apart fast: a hash of their labels, and a table that takes it as it is.

use std::hash::Hasher;

/// Takes what is a hash already as it is.
#[derive(Debug, Default)]
pub struct Hashed(u64);

impl Hasher for Hashed {
    fn write(&mut self, bytes: &[u8]) {
        self.0 = hash(self.0, bytes);
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    fn finish(&self) -> u64 {
        // Tables tell entries apart by the highest bits and place them by the lowest, which a product leaves weak.
        self.0 ^ (self.0 >> 32)
    }
}

/// A fast hash of a series that goes on from `before`, eight bytes at a time; equal hashes are compared byte by byte, so it need not be strong.
pub fn hash(before: u64, bytes: &[u8]) -> u64 {
    let mut state = before;
    let (words, tail) = bytes.as_chunks::<8>();
    let mut last = [0; 8];
    last[..tail.len()].copy_from_slice(tail);
    for word in words.iter().chain([&last]) {
        state = (state.rotate_left(5) ^ u64::from_le_bytes(*word)).wrapping_mul(0x517c_c1b7_2722_0a95);
    }
    state
}
