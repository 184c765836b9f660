#include "knobs.h"
#include <atomic>
#include <cstdlib>
#include <cstring>

namespace {

struct Declared {
    const char* variable;
    const char* value;
};
constexpr Declared kKnobs[] = {
#define KNOB(name, value, meaning) {"NPUSIM_" #name, value},
#include "knobs.inc"
#undef KNOB
};
constexpr int kCount = sizeof kKnobs / sizeof kKnobs[0];
std::atomic<const char*> g_texts[kCount];

}  // namespace

const char* npusim_knob_text(Knob knob) {
    std::atomic<const char*>& slot = g_texts[static_cast<int>(knob)];
    const char* text = slot.load(std::memory_order_acquire);
    if (text != nullptr) return text;
    const Declared& declared = kKnobs[static_cast<int>(knob)];
    const char* set = getenv(declared.variable);
    // A copy: the environment's own text may be overwritten by setenv.
    char* copy = strdup(set != nullptr && *set != 0 ? set : declared.value);
    if (slot.compare_exchange_strong(text, copy)) return copy;
    free(copy);
    return text;
}

int64_t npusim_knob(Knob knob) { return strtoll(npusim_knob_text(knob), nullptr, 0); }
