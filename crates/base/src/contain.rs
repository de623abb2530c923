//! Runs code of users on threads that are not theirs.
//!
//! A callback, a waker, a handler or a destructor of a user's object runs on whatever thread comes by: one that waits
//! for something else, or one of a node's own. A panic in it must neither end that thread nor unwind through whoever it
//! belongs to. So it is caught where the code is called, its text is told, and everybody else goes on.

use std::any::Any;
use std::io::Write;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Values of panics that are dropped one after the other, each of which panics with the next.
const DROPS_MAX: usize = 8;

/// Runs `act`. A panic in it ends here; its text is the error.
///
/// ```
/// assert_eq!(sheave_base::contain::run(|| 7), Ok(7));
/// # std::panic::set_hook(Box::new(|_| ()));
/// assert_eq!(sheave_base::contain::run(|| -> u8 { panic!("no luck") }), Err("no luck".to_owned()));
/// ```
pub fn run<T>(act: impl FnOnce() -> T) -> Result<T, String> {
    // What a user's code leaves behind half done is the user's; nothing of ours is touched within.
    catch_unwind(AssertUnwindSafe(act)).map_err(text)
}

/// Runs `act`, which `whose` describes, as in `a callback of recv`. A panic in it ends here and is told on standard
/// error; then there is no result.
pub fn told<T>(whose: impl std::fmt::Display, act: impl FnOnce() -> T) -> Option<T> {
    run(act).inspect_err(|text| tell(&format!("{whose} panicked: {text}"))).ok()
}

/// A user's object whose destructor may run on any thread. A panic in it is told and ends there.
pub struct Kept<T> {
    object: ManuallyDrop<T>,
    whose: &'static str,
}

impl<T> Kept<T> {
    /// Keeps the object. `whose` describes it, as in `an exported object`.
    pub fn new(whose: &'static str, object: T) -> Self {
        Self { object: ManuallyDrop::new(object), whose }
    }
}

impl<T> Deref for Kept<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.object
    }
}

impl<T> Drop for Kept<T> {
    fn drop(&mut self) {
        let Self { object, whose } = self;
        // SAFETY: the object is dropped here alone, and not touched afterwards.
        told(format_args!("the drop of {whose}"), || unsafe { ManuallyDrop::drop(object) });
    }
}

impl<T> std::fmt::Debug for Kept<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Kept").field(&self.whose).finish()
    }
}

/// Says that somebody's code has panicked. It went to nobody's result, so it is said where notices go.
fn tell(text: &str) {
    // Nobody to tell is no reason to fail.
    let _ = writeln!(std::io::stderr(), "sheave: {text}");
}

/// Returns what a panic said.
fn text(panic: Box<dyn Any + Send>) -> String {
    let text = match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
        (Some(text), _) => (*text).to_owned(),
        (None, Some(text)) => text.clone(),
        (None, None) => "a value that is no text".to_owned(),
    };
    discard(panic);
    text
}

/// Drops what a panic said, which may panic in its turn if it is a value of the user's own.
fn discard(mut panic: Box<dyn Any + Send>) {
    for _ in 0..DROPS_MAX {
        match catch_unwind(AssertUnwindSafe(|| drop(panic))) {
            Ok(()) => return,
            Err(again) => panic = again,
        }
    }
    // It would go on for ever.
    std::mem::forget(panic);
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Counts its drops, each of which panics with another one.
    static ENDLESS: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);

    struct Endless;

    impl Drop for Endless {
        fn drop(&mut self) {
            ENDLESS.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            std::panic::panic_any(Endless);
        }
    }

    struct Again;

    impl Drop for Again {
        fn drop(&mut self) {
            panic!("and again");
        }
    }

    #[test]
    fn a_panic_with_any_value_ends_here() {
        assert_eq!(run(|| std::panic::panic_any(7_u8)), Err::<(), _>("a value that is no text".to_owned()));
        assert_eq!(run(|| panic!("{} eggs", 3)), Err::<(), _>("3 eggs".to_owned()));
        assert_eq!(run(|| std::panic::panic_any(Again)), Err::<(), _>("a value that is no text".to_owned()));
        assert_eq!(told("a test", || panic!("told")), None::<()>);
        drop(Kept::new("an object of a test", Again));
    }

    #[test]
    #[cfg_attr(miri, ignore = "the last value is forgotten on purpose")]
    fn a_panic_whose_value_panics_for_ever_ends_here() {
        assert_eq!(run(|| std::panic::panic_any(Endless)), Err::<(), _>("a value that is no text".to_owned()));
        assert_eq!(ENDLESS.load(std::sync::atomic::Ordering::SeqCst), DROPS_MAX);
    }
}
