// How to step from one native frame to its caller, as the compiler wrote it down in .eh_frame.
//
// backtrace() interprets that table anew for every frame of every stack, some 200 to 500 ns each, and may wait for the
// loader's lock, which no hook may. What the table says about one return address never changes while its object stays
// loaded, so it is read once and kept as one word: where the caller's frame begins and where the caller's frame pointer
// is. Nearly all code has one of three forms, and a signal's frame one of its own. For the rest (code without a table,
// code made at run time, frames that need other registers) there is no rule, and a stack ends there.
//
//   bits  0-3   Cfa: from what the beginning of the caller's frame is counted
//   bits  4-5   SavedFp: where the caller's frame pointer is
//   bits  6-23  signed offset of SavedFp
//   bits 24-47  signed offset of Cfa
//   bits 48-63  of the table (rule_of): proves that the word belongs to its key
#pragma once

#include "record/record.h"

namespace memscope {

enum class Cfa : u32 {
    SP = 1,     // stack pointer + offset
    FP,         // frame pointer + offset
    AT_FP,      // what lies at frame pointer + offset: functions that align their stack
    OUTERMOST,  // there is no caller
    SIGNAL,     // the frame that a signal's handler returns to: the kernel has put all registers there
    NONE,       // no rule
};
enum class SavedFp : u32 { SAME, AT_CFA, AT_FP };

constexpr Cfa cfa_of(u64 rule) noexcept { return static_cast<Cfa>(rule & 15); }
constexpr i64 cfa_offset_of(u64 rule) noexcept { return static_cast<i64>(rule << 16) >> 40; }
constexpr SavedFp saved_fp_of(u64 rule) noexcept { return static_cast<SavedFp>(rule >> 4 & 3); }
constexpr i64 saved_fp_offset_of(u64 rule) noexcept { return static_cast<i64>(rule << 40) >> 46; }

// The rule for code at `address` (a return address minus one). Without any lock; see code_objects.h for the first time.
u64 rule_of(u64 address) noexcept;

// Objects were unloaded: their addresses may have become other code.
void forget_rules() noexcept;

// How often, modulo 2^16. Whoever else remembers something by code address makes this part of the key.
u64 code_generation() noexcept;

}  // namespace memscope
