// What the options come to in a rank: one struct, filled in one place (settings.cpp), read where it counts.
//
// It is filled from a text, `name=value;name=value`: from the variable MSMEMSCOPE_SETTINGS when the library is loaded,
// by Python afterwards. Which option a setting comes from stands in its declaration (msmemscope/options/declared.py,
// `native`); a test looks that each has one.
#pragma once

#include <atomic>

#include "record/record.h"

namespace memscope {

inline constexpr u32 kEveryOutput = ~0u;

// Numbers: name, value before any is said, largest value. Each may be read at any time, in hooks too.
#define MEMSCOPE_SETTINGS(X)                                                   \
    X(python_depth, 0, kMaxFrames)   /* frames kept of a Python stack */       \
    X(native_depth, 0, kMaxFrames)   /* frames kept of a native stack */       \
    X(ring_mib, 16, 1024)            /* of a ring that is made from now on */  \
    X(ring_wait_ms, 20, 1000)        /* for room in a full ring; 0: never */   \
    X(sorts, 1, 15)                  /* sums of Sort: selection.h */           \
    X(deferred, 0, 1)                /* nothing is recorded before start() */  \
    X(watch_output, 0, kEveryOutput) /* number of the output of watch_start */ \
    X(watch_content, 0, 1)           /* watched bytes go to files */

// Texts: name, value before any is said, bytes that it may have. Whoever reads one in a hook is told when it changes
// (settings.cpp), and keeps what it needs.
#define MEMSCOPE_TEXT_SETTINGS(X)                                                                                    \
    X(devices, "auto", 1024)      /* words of --device; what they select, and what becomes of `auto`: selection.h */ \
    X(watch_start, "", 256)       /* operator whose outputs are watched; empty: none */                              \
    X(watch_end, "", 256)         /* operator that ends it */                                                        \
    X(output_directory, "", 4097) /* where files of a block's content go */

struct Settings {
#define X(name, value, most) std::atomic<u32> name{value};
    MEMSCOPE_SETTINGS(X)
#undef X
#define X(name, value, bytes) char name[bytes] = value;
    MEMSCOPE_TEXT_SETTINGS(X)
#undef X
};
extern Settings g_settings;

}  // namespace memscope

extern "C" {
// Takes over the settings that `text` names; the others stay. 0, or EINVAL when it names an unknown one or a value that
// is none: then nothing is changed.
int memscope_configure(const char* text);
// Every setting with its value.
void memscope_visit_settings(void (*visit)(void* context, const char* name, const char* value), void* context);
}
