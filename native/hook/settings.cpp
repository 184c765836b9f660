#include "hook/settings.h"

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "hook/recorder.h"
#include "hook/selection.h"
#include "source/watched_blocks.h"

namespace memscope {

Settings g_settings;

namespace {

struct Number {
    const char* name;
    std::atomic<u32> Settings::* value;
    u32 most;
};
constexpr Number kNumbers[] = {
#define X(name, value, most) {#name, &Settings::name, most},
    MEMSCOPE_SETTINGS(X)
#undef X
};
struct Text {
    const char* name;
    char* value;
    std::size_t bytes;
};
const Text kTexts[] = {
#define X(name, value, bytes) {#name, g_settings.name, bytes},
    MEMSCOPE_TEXT_SETTINGS(X)
#undef X
};

// Part of a text that goes on behind it.
struct Piece {
    const char* begin;
    std::size_t bytes;

    bool is(const char* text) const noexcept { return strlen(text) == bytes && strncmp(begin, text, bytes) == 0; }
};

// False: no decimal number up to `most`.
bool read_number(Piece text, u32 most, u32& value) noexcept {
    u64 sum = 0;
    for (std::size_t i = 0; i < text.bytes; ++i) {
        if (text.begin[i] < '0' || text.begin[i] > '9') return false;
        sum = sum * 10 + static_cast<u64>(text.begin[i] - '0');
        if (sum > most) return false;
    }
    value = static_cast<u32>(sum);
    return text.bytes != 0;
}

// False: there is no such setting, or no such value of it.
bool take(Piece name, Piece value, bool is_trial) noexcept {
    for (const Text& text : kTexts) {
        if (!name.is(text.name)) continue;
        if (value.bytes >= text.bytes) return false;
        if (is_trial) return true;
        memcpy(text.value, value.begin, value.bytes);
        text.value[value.bytes] = 0;
        if (text.value == g_settings.devices) select_devices(text.value);
        return true;
    }
    for (const Number& number : kNumbers) {
        if (!name.is(number.name)) continue;
        u32 read = 0;
        if (!read_number(value, number.most, read)) return false;
        if (!is_trial) (g_settings.*number.value).store(read);
        return true;
    }
    return false;
}

bool take_all(const char* text, bool is_trial) noexcept {
    while (*text != 0) {
        const std::size_t bytes = strcspn(text, ";"), name = strcspn(text, "=");
        if (name >= bytes || !take({text, name}, {text + name + 1, bytes - name - 1}, is_trial)) return false;
        text += bytes + (text[bytes] == ';' ? 1 : 0);
    }
    return true;
}

}  // namespace
}  // namespace memscope

#define MEMSCOPE_API extern "C" __attribute__((visibility("default")))

MEMSCOPE_API int memscope_configure(const char* text) {
    using namespace memscope;
    if (!take_all(text, true)) return EINVAL;
    take_all(text, false);
    use_ring_wait();
    watch_as_set();
    operators_switched();
    return 0;
}

MEMSCOPE_API void memscope_visit_settings(void (*visit)(void*, const char*, const char*), void* context) {
    using namespace memscope;
    for (const Number& number : kNumbers) {
        char value[16];
        snprintf(value, sizeof value, "%u", (g_settings.*number.value).load());
        visit(context, number.name, value);
    }
    for (const Text& text : kTexts) visit(context, text.name, text.value);
}
