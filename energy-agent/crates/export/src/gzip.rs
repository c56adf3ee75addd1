//! Compresses a page while it is written: pieces of text go to a thread beside the writer's, so that a page takes about
//! as long as the slower of the two, and of its text not more than a family is ever there.

use std::sync::mpsc::{self, Receiver, Sender, SyncSender};
use std::thread::{self, JoinHandle};

use flate2::Crc;

use crate::deflate::Deflate;

/// Text is compressed in pieces of about this size, each with codes of its own.
pub const PIECE: usize = 128 * 1024;
/// Pieces that wait at most; then the writer does.
const WAITING: usize = 4;
/// What the compressed page begins with: a mapping of its own, of which untouched memory costs nothing, in place of
/// steps that leave holes in the heap.
const ROOM: usize = 1 << 20;
/// RFC 1952: DEFLATE, without a name and a time, from an unknown system.
const HEADER: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff];

/// A page under construction.
#[derive(Debug)]
pub struct Gzip {
    pieces: SyncSender<Vec<u8>>,
    /// Buffers that are free again.
    emptied: Receiver<Vec<u8>>,
    compressor: Compressor,
}

#[derive(Debug)]
enum Compressor {
    Beside(JoinHandle<Vec<u8>>),
    /// The machine gives no more threads, and a page is wanted all the same.
    Here(Box<Member>),
}

impl Gzip {
    #[must_use]
    pub fn start() -> Self {
        let (pieces, waiting) = mpsc::sync_channel(WAITING);
        let (empty, emptied) = mpsc::channel();
        let beside = thread::Builder::new().name("gzip".to_owned()).spawn(move || compress(&waiting, &empty));
        let compressor = beside.map_or_else(|_| Compressor::Here(Box::default()), Compressor::Beside);
        Self { pieces, emptied, compressor }
    }

    pub fn write(&mut self, text: &[u8]) {
        match &mut self.compressor {
            Compressor::Here(member) => member.write(text),
            Compressor::Beside(_) => {
                let mut piece = self.emptied.try_recv().unwrap_or_default();
                piece.clear();
                piece.extend_from_slice(text);
                self.pieces.send(piece).expect("the thread ends after the last piece");
            }
        }
    }

    /// The compressed page.
    #[must_use]
    pub fn finish(self) -> Vec<u8> {
        let Self { pieces, emptied: _, compressor } = self;
        drop(pieces);
        match compressor {
            Compressor::Here(member) => member.finish(),
            Compressor::Beside(thread) => thread.join().expect("compressing does not fail"),
        }
    }
}

/// A text that is there already.
#[must_use]
pub fn gzip(text: &[u8]) -> Vec<u8> {
    let mut member = Member::default();
    text.chunks(PIECE).for_each(|piece| member.write(piece));
    member.finish()
}

/// Until the last piece has come.
fn compress(pieces: &Receiver<Vec<u8>>, empty: &Sender<Vec<u8>>) -> Vec<u8> {
    let mut member = Member::default();
    for piece in pieces {
        member.write(&piece);
        // Nobody takes it back after the last.
        let _ = empty.send(piece);
    }
    member.finish()
}

/// One member of a gzip file (RFC 1952) under construction.
#[derive(Debug)]
struct Member {
    deflate: Deflate,
    /// Also counts the bytes.
    crc: Crc,
}

impl Default for Member {
    fn default() -> Self {
        let mut out = Vec::with_capacity(ROOM);
        out.extend(HEADER);
        Self { deflate: Deflate::after(out), crc: Crc::new() }
    }
}

impl Member {
    fn write(&mut self, text: &[u8]) {
        self.crc.update(text);
        self.deflate.write(text);
    }

    fn finish(self) -> Vec<u8> {
        let mut member = self.deflate.finish();
        member.extend(self.crc.sum().to_le_bytes());
        member.extend(self.crc.amount().to_le_bytes());
        member
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use flate2::read::GzDecoder;

    use super::*;

    #[test]
    fn without_a_thread_the_page_is_the_same_and_reads_back() {
        let pieces = || (0_u32..20).map(|piece| format!("{piece} ").repeat(20_000));
        let page = |mut gzip: Gzip| {
            pieces().for_each(|piece| gzip.write(piece.as_bytes()));
            gzip.finish()
        };
        let beside = page(Gzip::start());
        let here = Gzip { compressor: Compressor::Here(Box::default()), ..Gzip::start() };
        assert!(beside == page(here));
        // Ends with an error where checksum or length are wrong.
        let mut text = String::new();
        GzDecoder::new(&beside[..]).read_to_string(&mut text).unwrap();
        assert!(text == pieces().collect::<String>());
    }
}
