//! What several black-box tests share.

pub mod tree;
