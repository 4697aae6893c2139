//! The clock of a device: completions can be stamped with it.

use ibverbs_api::Context as Facade;

use crate::call::{Positive, Refused, answer};
use crate::context::Context;
use crate::handles::live;
use crate::memory::{get, put};
use crate::types::{ibv_context, ibv_values_ex};

/// `IBV_VALUES_MASK_RAW_CLOCK`.
const RAW_CLOCK: u32 = 1;

/// `ibv_query_rt_values_ex(3)`, which `verbs.h` calls by a pointer; what was read is in `comp_mask`.
///
/// The whole count is in `tv_nsec`, since that is where programs look for cycles, as adapters give
/// them; those that add the seconds find none.
pub(crate) unsafe extern "C" fn query_rt_values(
    context: *mut ibv_context,
    values: *mut ibv_values_ex,
) -> Positive {
    answer("ibv_query_rt_values_ex", || {
        live::<Context>(context)?;
        // SAFETY: the program says there what it wants, and wants the values there.
        unsafe {
            let mut values_ex = get(values)?;
            if values_ex.comp_mask & !RAW_CLOCK != 0 {
                return Err(Refused::invalid("comp_mask has unknown bits"));
            }
            if values_ex.comp_mask & RAW_CLOCK != 0 {
                let tv_nsec = i64::try_from(Facade::clock_nanos()).unwrap_or(i64::MAX);
                values_ex.raw_clock = libc::timespec { tv_sec: 0, tv_nsec };
            }
            put(values, values_ex)
        }
    })
}
