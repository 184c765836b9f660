#include "hook/fork.h"

#include <pthread.h>

#include "hook/guard.h"
#include "hook/recorder.h"

namespace memscope {
namespace {

void in_child() noexcept {
    if (t_inside != 0) return record_nothing_in_child();
    for (AfterFork* const* entry = begin_of_after_fork(); entry != end_of_after_fork(); ++entry) (*entry)();
}

__attribute__((constructor)) void watch_forks() noexcept { pthread_atfork(nullptr, nullptr, in_child); }

}  // namespace
}  // namespace memscope
