#include "hook/selection.h"

#include <cstdlib>
#include <cstring>

#include "hook/fork.h"
#include "hook/recorder.h"

namespace memscope {

Selection g_selection;

namespace {

// The mask that `word` adds for devices of `name`: all bits for "npu", one for "npu:3".
u32 mask_of(const char* word, std::size_t length, const char* name) noexcept {
    const std::size_t prefix = strlen(name);
    if (length < prefix || strncmp(word, name, prefix) != 0) return 0;
    if (length == prefix) return ~0u;
    if (word[prefix] != ':') return 0;
    const unsigned long index = strtoul(word + prefix + 1, nullptr, 10);
    return index < 32 ? 1u << index : 0;
}

// What `old` has and `next` does not is not selected any more.
void narrow(std::atomic<u32>& earlier, u32 old, u32 next) noexcept {
    if ((old & ~next) == 0 || (!is_recording() && !has_ring())) return;  // or nothing was recorded under it
    earlier.fetch_or(old);
    g_selection.has_narrowed.store(true);
}

// What was recorded is the parent's.
void begin_anew_in_child() noexcept {
    g_selection.has_narrowed.store(false);
    g_selection.earlier.cpu.store(0);
    g_selection.earlier.npu.store(0);
    g_selection.earlier.cuda.store(0);
}
MEMSCOPE_AFTER_FORK(begin_anew_in_child);

}  // namespace

void select_devices(const char* list) noexcept {
    u32 cpu = 0, npu = 0, cuda = 0, automatic = 0;
    while (*list != 0) {
        const std::size_t length = strcspn(list, ",");
        if (length == 4 && strncmp(list, "auto", 4) == 0) automatic = 1;
        cpu |= mask_of(list, length, "cpu");
        npu |= mask_of(list, length, "npu");
        cuda |= mask_of(list, length, "cuda");
        list += length + (list[length] == ',' ? 1 : 0);
    }
    if (automatic != 0) {
        npu = cuda = ~0u;
        // `auto,cpu` keeps the CPU whatever else there is: then it is not automatic any more.
        automatic = cpu == 0 ? 1 : 0;
        // An accelerator that was seen while blocks were only remembered was seen.
        const bool stays_automatic = automatic != 0 && g_selection.is_auto.load() != 0;
        cpu = stays_automatic ? g_selection.now.cpu.load() : 1;
    }
    Devices& earlier = g_selection.earlier;
    // `auto` may end the host's at any time, and has noted only the blocks that were recorded under it.
    const bool keeps_cpu = automatic == 0 || g_selection.is_auto.load() != 0;
    narrow(earlier.cpu, g_selection.now.cpu.load(), keeps_cpu ? cpu : 0);
    narrow(earlier.npu, g_selection.now.npu.load(), npu);
    narrow(earlier.cuda, g_selection.now.cuda.load(), cuda);
    g_selection.now.cpu.store(cpu);
    g_selection.now.npu.store(npu);
    g_selection.now.cuda.store(cuda);
    g_selection.is_auto.store(automatic);
}

}  // namespace memscope
