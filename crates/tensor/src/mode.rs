//! Who may touch a buffer's bytes after it was handed over.

/// How a tensor is handed to an operation; the names are the same in every room and in every language.
///
/// Collectives and exchange use none of them: they *borrow* until their work completes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// The bytes are captured before the call returns: the caller may overwrite its tensor at once. The default.
    #[default]
    Copy,
    /// The handle is consumed and nothing is copied where memory can change hands: the receiver gets the same block.
    Move,
    /// Both sides see the same memory from then on. Writes of one are seen by the other at an unknown time, and no safe
    /// slice of it exists on either side: the caller's risk.
    Share,
}
