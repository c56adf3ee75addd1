//! Pages that are kept in memory because somebody still reads them. A page of an older tick lives for its readers alone.

use bytes::Bytes;

/// In the order in which they were first read.
#[derive(Debug, Default)]
pub(super) struct SharedPages(Vec<SharedPage>);

#[derive(Debug)]
struct SharedPage {
    /// Where its bytes are: as long as it has readers nothing else is there.
    place: usize,
    length: usize,
    readers: Vec<u64>,
}

impl SharedPages {
    /// `name` begins to read `page`. Returns who has to leave so that at most `most` bytes are kept; never `name`, so that
    /// one page may be larger than that.
    pub(super) fn read(&mut self, name: u64, page: &Bytes, most: usize) -> Vec<u64> {
        self.left(name);
        let (place, length) = (page.as_ptr().addr(), page.len());
        match self.0.iter_mut().find(|page| page.place == place && page.length == length) {
            Some(page) => page.readers.push(name),
            None => self.0.push(SharedPage { place, length, readers: vec![name] }),
        }
        let mut over = self.0.iter().map(|page| page.length).sum::<usize>().saturating_sub(most);
        let mut leave = Vec::new();
        for page in &self.0 {
            if over == 0 {
                break;
            }
            if !page.readers.contains(&name) {
                over = over.saturating_sub(page.length);
                leave.extend_from_slice(&page.readers);
            }
        }
        leave
    }

    /// It reads nothing any more.
    pub(super) fn left(&mut self, name: u64) {
        self.0.retain_mut(|page| {
            page.readers.retain(|reader| *reader != name);
            !page.readers.is_empty()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_counts_once_and_the_readers_of_the_oldest_leave() {
        let [first, second, third] = [b'a', b'b', b'c'].map(|byte| Bytes::from(vec![byte; 10]));
        let mut pages = SharedPages::default();
        assert!(pages.read(1, &first, 20).is_empty());
        assert!(pages.read(2, &second, 20).is_empty());
        assert!(pages.read(3, &first.clone(), 20).is_empty(), "the same page is there already");
        assert_eq!(pages.read(4, &third, 20), [1, 3]);
        pages.left(1);
        pages.left(3);
        assert!(pages.read(5, &third, 20).is_empty());
        assert_eq!(pages.read(2, &Bytes::from(vec![0; 30]), 20), [4, 5], "one that is larger than all is read alone");
    }
}
