//! Compresses a page while it is written: pieces of text go to a thread beside the writer's, so that a page takes about
//! as long as the slower of the two, and of its text not more than a family is ever there.

use std::io::Write as _;
use std::sync::mpsc::{self, Receiver, Sender, SyncSender};
use std::thread::{self, JoinHandle};

use flate2::Compression;
use flate2::write::GzEncoder;

/// Pieces that wait at most; then the writer does.
const WAITING: usize = 4;

/// One gzip member under construction.
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
    Here(Box<GzEncoder<Vec<u8>>>),
}

impl Gzip {
    #[must_use]
    pub fn start() -> Self {
        let (pieces, waiting) = mpsc::sync_channel(WAITING);
        let (empty, emptied) = mpsc::channel();
        let beside = thread::Builder::new().name("gzip".to_owned()).spawn(move || compress(&waiting, &empty));
        let compressor = beside.map_or_else(|_| Compressor::Here(Box::new(encoder())), Compressor::Beside);
        Self { pieces, emptied, compressor }
    }

    pub fn write(&mut self, text: &[u8]) {
        match &mut self.compressor {
            Compressor::Here(encoder) => encoder.write_all(text).expect("a Vec takes every write"),
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
            Compressor::Here(encoder) => finish(*encoder),
            Compressor::Beside(thread) => thread.join().expect("a Vec takes every write"),
        }
    }
}

/// Until the last piece has come.
fn compress(pieces: &Receiver<Vec<u8>>, empty: &Sender<Vec<u8>>) -> Vec<u8> {
    let mut encoder = encoder();
    for piece in pieces {
        encoder.write_all(&piece).expect("a Vec takes every write");
        // Nobody takes it back after the last.
        let _ = empty.send(piece);
    }
    finish(encoder)
}

fn encoder() -> GzEncoder<Vec<u8>> {
    GzEncoder::new(Vec::new(), Compression::fast())
}

fn finish(encoder: GzEncoder<Vec<u8>>) -> Vec<u8> {
    encoder.finish().expect("a Vec takes every write")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_thread_the_page_is_the_same() {
        let page = |mut gzip: Gzip| {
            for piece in 0_u32..20 {
                gzip.write(format!("{piece} ").repeat(20_000).as_bytes());
            }
            gzip.finish()
        };
        let here = Gzip { compressor: Compressor::Here(Box::new(encoder())), ..Gzip::start() };
        assert!(page(Gzip::start()) == page(here));
    }
}
