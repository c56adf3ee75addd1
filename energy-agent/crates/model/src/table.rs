//! Hash tables that things come to and go from.

use std::collections::HashMap;
use std::hash::Hash;

/// Gives back the room of a table that has become much too large. A deleted entry may go on taking room in a table that is
/// more than half full, and where things come and go the table is doubled for these some minutes later.
pub fn fit<K: Eq + Hash, V>(table: &mut HashMap<K, V>) {
    table.shrink_to(table.len() / 4 * 5);
}
