//! The kernel's own description of its types (BTF), reduced to the one question asked of it: at which byte offset does
//! a struct have a field. Rust programs carry no relocations of their own, so the answers are handed to them as globals.
//!
//! Format: <https://docs.kernel.org/bpf/btf.html>.

use anyhow::{Context, Result, bail, ensure};

const MAGIC: u16 = 0xeb9f;
const STRUCT: u32 = 4;
const UNION: u32 = 5;
const FORWARD: u32 = 7;
const TYPEDEF: u32 = 8;

const HEADER_LEN: u32 = 24;

/// One BTF image, such as `/sys/kernel/btf/vmlinux`, indexed by type id.
pub struct Types<'a> {
    image: &'a [u8],
    strings: usize,
    /// Byte position of each type's header; ids begin at 1.
    positions: Vec<usize>,
}

impl<'a> Types<'a> {
    /// # Errors
    /// When the image is not little-endian BTF of version 1, is cut short, or has a kind of type that is not known.
    pub fn parse(image: &'a [u8]) -> Result<Self> {
        let head = |at: usize| word(image, at);
        let magic = image.get(..2).and_then(|bytes| bytes.try_into().ok()).map(u16::from_le_bytes);
        ensure!(magic == Some(MAGIC), "not BTF: magic {magic:04x?} instead of {MAGIC:04x}");
        let header_len = index(head(4)?)?;
        let types = header_len + index(head(8)?)?;
        let types_end = types + index(head(12)?)?;
        let strings = header_len + index(head(16)?)?;
        let mut positions = vec![0];
        let mut at = types;
        while at < types_end {
            positions.push(at);
            let info = word(image, at + 4)?;
            let entries = index(info & 0xffff)?;
            at += 12
                + match (info >> 24) & 0x1f {
                    2 | 7..=12 | 16 | 18 => 0,
                    1 | 14 | 17 => 4,
                    3 => 12,
                    STRUCT | UNION | 15 | 19 => entries * 12,
                    6 | 13 => entries * 8,
                    kind => bail!("BTF type {} has the unknown kind {kind}", positions.len() - 1),
                };
        }
        Ok(Self { image, strings, positions })
    }

    /// Byte offset of `field` in `struct name`, also when it lies in an anonymous struct or union within. A path such as
    /// `se.sum_exec_runtime` goes on in the struct that is the first field's type.
    ///
    /// # Errors
    /// When there is no such struct or field, or the field is not at a whole byte.
    pub(crate) fn offset_of(&self, name: &str, field: &str) -> Result<u64> {
        for id in 1..self.positions.len() {
            let at = self.positions[id];
            let info = word(self.image, at + 4)?;
            // A forward declaration has another kind; a struct of this name without entries is of no use either.
            if (info >> 24) & 0x1f == STRUCT
                && info & 0xffff != 0
                && self.string(word(self.image, at)?) == name.as_bytes()
            {
                let mut bits = 0;
                let mut within = at;
                for part in field.split('.') {
                    let found = self.member(within, part, 0)?;
                    let (offset, type_id) =
                        found.with_context(|| format!("struct {name} has no field {field} in this kernel"))?;
                    bits += offset;
                    within = self.position(type_id)?;
                }
                ensure!(bits % 8 == 0, "field {field} of struct {name} is a bit field");
                return Ok(bits / 8);
            }
        }
        bail!("this kernel's BTF has no struct {name}")
    }

    /// The image with nothing in it but the typedefs whose names begin with `prefix`, under their ids: all that is needed to
    /// name a tracepoint to the kernel, in a fifth of the room.
    ///
    /// # Errors
    /// When the image is cut short.
    pub fn only(&self, prefix: &str) -> Result<Vec<u8>> {
        let (mut types, mut strings, mut wanted_len) = (Vec::new(), vec![0], 0);
        for &at in self.positions.iter().skip(1) {
            let info = word(self.image, at + 4)?;
            let name = self.string(word(self.image, at)?);
            if (info >> 24) & 0x1f == TYPEDEF && name.starts_with(prefix.as_bytes()) {
                let position = u32::try_from(strings.len())?;
                strings.extend_from_slice(name);
                strings.push(0);
                types.extend([position, TYPEDEF << 24, 0].map(u32::to_le_bytes).as_flattened());
                wanted_len = types.len();
            } else {
                types.extend([0, FORWARD << 24, 0].map(u32::to_le_bytes).as_flattened());
            }
        }
        types.truncate(wanted_len);
        let types_len = u32::try_from(types.len())?;
        let header = [HEADER_LEN, 0, types_len, types_len, u32::try_from(strings.len())?];
        let mut image = self.image[..4].to_vec();
        image.extend(header.map(u32::to_le_bytes).as_flattened());
        image.append(&mut types);
        image.append(&mut strings);
        Ok(image)
    }

    fn position(&self, type_id: u32) -> Result<usize> {
        self.positions.get(index(type_id)?).copied().context("BTF member of a type that does not exist")
    }

    /// Offset in bits and type id of a member of the struct or union at `at`; of other types there are none.
    fn member(&self, at: usize, field: &str, depth: u32) -> Result<Option<(u64, u32)>> {
        ensure!(depth < 16, "structs nested too deeply around {field}");
        let info = word(self.image, at + 4)?;
        if !matches!((info >> 24) & 0x1f, STRUCT | UNION) {
            return Ok(None);
        }
        let has_bit_fields = info >> 31 == 1;
        for member in 0..index(info & 0xffff)? {
            let member = at + 12 + member * 12;
            let name = self.string(word(self.image, member)?);
            let offset = word(self.image, member + 8)?;
            let bits = u64::from(if has_bit_fields { offset & 0x00ff_ffff } else { offset });
            let type_id = word(self.image, member + 4)?;
            if name == field.as_bytes() {
                return Ok(Some((bits, type_id)));
            }
            if name.is_empty()
                && let Some((within, type_id)) = self.member(self.position(type_id)?, field, depth + 1)?
            {
                return Ok(Some((bits + within, type_id)));
            }
        }
        Ok(None)
    }

    fn string(&self, offset: u32) -> &[u8] {
        let start = self.strings.saturating_add(usize::try_from(offset).unwrap_or(usize::MAX));
        let rest = self.image.get(start..).unwrap_or_default();
        &rest[..rest.iter().position(|byte| *byte == 0).unwrap_or(rest.len())]
    }
}

fn word(image: &[u8], at: usize) -> Result<u32> {
    let bytes = image.get(at..at.saturating_add(4)).context("BTF is cut short")?;
    Ok(u32::from_le_bytes(bytes.try_into().context("BTF is cut short")?))
}

fn index(value: u32) -> Result<usize> {
    Ok(usize::try_from(value)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// struct outer { int a; struct { int b; int c; }; struct inner named; }; struct inner { int c; int d; }, as the
    /// compiler would describe them.
    fn image() -> Vec<u8> {
        let strings = b"\0int\0outer\0a\0b\0c\0named\0inner\0d\0";
        let types: Vec<u32> = [
            // 1: int, 32 bits
            vec![1, 1 << 24, 4, 32],
            // 2: anonymous struct of 8 bytes with b at bit 0 and c at bit 32
            vec![0, (STRUCT << 24) | 2, 8, 13, 1, 0, 15, 1, 32],
            // 3: struct outer of 20 bytes with a at bit 0, the anonymous struct at bit 32 and named at bit 96
            vec![5, (STRUCT << 24) | 3, 20, 11, 1, 0, 0, 2, 32, 17, 4, 96],
            // 4: struct inner of 8 bytes with c at bit 0 and d at bit 32
            vec![23, (STRUCT << 24) | 2, 8, 15, 1, 0, 29, 1, 32],
        ]
        .concat();
        let types_len = u32::try_from(types.len() * 4).unwrap();
        let strings_len = u32::try_from(strings.len()).unwrap();
        let mut image = vec![0x9f, 0xeb, 1, 0];
        for word in [24, 0, types_len, types_len, strings_len].into_iter().chain(types) {
            image.extend(word.to_le_bytes());
        }
        image.extend(strings);
        image
    }

    #[test]
    fn a_field_of_an_anonymous_struct_is_found_in_the_outer_one() {
        let image = image();
        let types = Types::parse(&image).unwrap();
        assert_eq!(types.offset_of("outer", "a").unwrap(), 0);
        assert_eq!(types.offset_of("outer", "c").unwrap(), 8);
        assert_eq!(types.offset_of("outer", "named.d").unwrap(), 16);
    }

    #[test]
    fn a_reduced_image_has_the_typedefs_that_are_wanted_under_their_ids() {
        let mut image = image();
        // 5: typedef "outer", 6: typedef "int", in place of nothing.
        let more = [5, TYPEDEF << 24, 3, 1, TYPEDEF << 24, 1].map(u32::to_le_bytes).concat();
        let types_len = word(&image, 12).unwrap();
        let end = index(HEADER_LEN + types_len).unwrap();
        image.splice(end..end, more.iter().copied());
        for at in [12, 16] {
            let longer = word(&image, at).unwrap() + 24;
            image[at..at + 4].copy_from_slice(&longer.to_le_bytes());
        }
        let reduced = Types::parse(&image).unwrap().only("out").unwrap();
        let types = Types::parse(&reduced).unwrap();
        assert_eq!(types.positions.len(), 6, "nothing behind the last one that is wanted");
        assert_eq!(word(&reduced, types.positions[5] + 4).unwrap(), TYPEDEF << 24);
        assert_eq!(types.string(word(&reduced, types.positions[5]).unwrap()), b"outer");
        assert!(types.positions[1..5].iter().all(|&at| types.string(word(&reduced, at).unwrap()).is_empty()));
    }

    #[test]
    fn what_is_missing_is_named() {
        let image = image();
        let types = Types::parse(&image).unwrap();
        assert_eq!(
            types.offset_of("outer", "d").unwrap_err().to_string(),
            "struct outer has no field d in this kernel"
        );
        assert_eq!(types.offset_of("other", "d").unwrap_err().to_string(), "this kernel's BTF has no struct other");
    }

    #[test]
    fn any_cut_or_flipped_image_is_an_error_or_an_answer_but_no_panic() {
        let image = image();
        for len in 0..image.len() {
            if let Ok(types) = Types::parse(&image[..len]) {
                let _ = types.offset_of("outer", "c");
            }
        }
        for at in 0..image.len() {
            let mut image = image.clone();
            image[at] ^= 0xff;
            if let Ok(types) = Types::parse(&image) {
                let _ = types.offset_of("outer", "c");
            }
        }
    }
}
