#include "hook/devices.h"

#include <atomic>
#include <cstdlib>
#include <cstring>

#include "hook/fork.h"
#include "hook/recorder.h"
#include "hook/spin_lock.h"

namespace memscope {
namespace {

constexpr const char* kVariable = "ASCEND_RT_VISIBLE_DEVICES";
constexpr u32 kMostDevices = 64;

enum class State : u32 { UNREAD, READING, READ };
std::atomic<State> g_state{State::UNREAD};
i16 g_physical[kMostDevices];
u32 g_count = 0;  // 0: numbers stay as they are
char g_text[256];

// A comma list of different numbers below kMostDevices, blanks allowed around each.
bool parse(const char* text) noexcept {
    u64 seen = 0;
    for (;;) {
        while (*text == ' ') ++text;
        char* end = nullptr;
        const unsigned long number = strtoul(text, &end, 10);
        if (end == text || *text == '-' || *text == '+' || number >= kMostDevices || (seen >> number & 1) != 0)
            return false;
        seen |= u64{1} << number;
        g_physical[g_count++] = static_cast<i16>(number);
        while (*end == ' ') ++end;
        if (*end == 0) return true;
        if (*end != ',') return false;
        text = end + 1;
    }
}

void read_variable() noexcept {
    const char* text = getenv(kVariable);
    if (text == nullptr || *text == 0) return;
    if (strlen(text) < sizeof g_text && parse(text)) {
        strcpy(g_text, text);
    } else {
        g_count = 0;
        report_blind("devices",
                     "ASCEND_RT_VISIBLE_DEVICES is not a list of device numbers: devices keep the process's");
    }
}

// Another thread may have been reading it.
void begin_anew_in_child() noexcept {
    if (g_state.load(std::memory_order_relaxed) != State::READING) return;
    g_count = 0;
    g_state.store(State::UNREAD, std::memory_order_relaxed);
}
MEMSCOPE_AFTER_FORK(begin_anew_in_child);

}  // namespace

const char* visible_devices() noexcept {
    return g_state.load(std::memory_order_acquire) == State::READ && g_count != 0 ? g_text : nullptr;
}

i16 physical_device(i16 logical) noexcept {
    if (__builtin_expect(g_state.load(std::memory_order_acquire) != State::READ, 0)) {
        State unread = State::UNREAD;
        if (g_state.compare_exchange_strong(unread, State::READING, std::memory_order_acq_rel)) {
            read_variable();
            g_state.store(State::READ, std::memory_order_release);
            if (visible_devices() != nullptr && has_ring()) emit_meta("visible_devices", g_text);
        } else {
            for (u32 looks = 0; g_state.load(std::memory_order_acquire) != State::READ;) wait_a_moment(looks);
        }
    }
    return logical >= 0 && static_cast<u32>(logical) < g_count ? g_physical[logical] : logical;
}

}  // namespace memscope
