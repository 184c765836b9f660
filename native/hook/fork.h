// What becomes of the library in a forked child: the one place that is told of a fork.
//
// In the child only the thread that forked goes on. What it holds is a copy of this moment: locks that nobody is there
// to open, tables that another thread was changing, states that say that somebody is at work. Whoever has such a thing
// says here how it begins anew. What another thread may have left half done is given up; a lock alone is opened where
// every entry counts only when it is whole.
//
// The parent is not stopped before: a program may fork in a signal handler that has interrupted one of our hooks, and
// would wait for itself. So there is nothing to do in the parent, neither before nor afterwards.
//
// Such a child goes on in the middle of that hook: all stays as the hook left it, and the child, which shares the ring
// of its parent, records nothing from then on and is counted (unwatched.h). A child of vfork, posix_spawn or clone
// alone is not told: it executes another program at once.
#pragma once

#include "hook/gathered.h"

namespace memscope {

// Touches the file's own state alone; in which order they are called is not known.
using AfterFork = void() noexcept;
MEMSCOPE_GATHERED(after_fork, AfterFork)

// At the end of a file that has something to say: MEMSCOPE_AFTER_FORK(begin_anew_in_child);
#define MEMSCOPE_AFTER_FORK(function) MEMSCOPE_ENTER(after_fork, ::memscope::AfterFork, k_after_fork, function)

}  // namespace memscope
