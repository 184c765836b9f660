#include "kernel/row_attributes.h"

#include <algorithm>
#include <cstring>

#include "kernel/cell_text.h"

namespace memscope::kernel {

namespace {

// The first eight bytes of a key as one number, so that most keys are told apart by one comparison.
constexpr u64 head_of(std::string_view key) noexcept {
    u64 head = 0;
    for (std::size_t at = 0; at < key.size() && at < 8; ++at)
        head |= u64{static_cast<unsigned char>(key[at])} << (8 * at);
    return head;
}

struct Key {
    u64 head;
    std::string_view text;
};
constexpr Key kKeys[] = {
#define X(name, key) {head_of(key), key},
    MEMSCOPE_ROW_ATTRIBUTES(X)
#undef X
};

RowAttribute attribute_of(std::string_view key) noexcept {
    u64 head = 0;
    std::memcpy(&head, key.data(), std::min<std::size_t>(key.size(), 8));
    for (std::size_t at = 0; at < std::size(kKeys); ++at)
        if (kKeys[at].head == head && kKeys[at].text == key) return static_cast<RowAttribute>(at);
    return RowAttribute::OTHER;
}

constexpr bool is_of_key(char c) noexcept {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

bool is_key(std::string_view text) noexcept {
    return !text.empty() && std::all_of(text.begin(), text.end(), is_of_key);
}

// Where the value ends with which the text begins: at a comma behind which another key stands.
std::size_t value_end(std::string_view text) noexcept {
    std::size_t at = 0;
    while ((at = text.find(',', at)) != std::string_view::npos) {
        std::size_t next = at + 1;
        while (next < text.size() && is_of_key(text[next])) ++next;
        if (next > at + 1 && next < text.size() && text[next] == ':') return at;
        while (next < text.size() && text[next] != ':' && text[next] != ',') ++next;
        if (next < text.size() && text[next] == ':' && is_key(unquoted(trimmed(text.substr(at + 1, next - at - 1)))))
            return at;
        at += 1;
    }
    return text.size();
}

}  // namespace

void RowAttributes::read(std::string_view text) noexcept {
    found_ = 0;
    if (!text.empty() && text.front() == '{') text.remove_prefix(1);
    if (!text.empty() && text.back() == '}') text.remove_suffix(1);
    while (!text.empty()) {
        const std::size_t colon = text.find(':');
        if (colon == std::string_view::npos) return;
        const RowAttribute which = attribute_of(unquoted(trimmed(text.substr(0, colon))));
        text.remove_prefix(colon + 1);
        const std::size_t end = value_end(text);
        if (which != RowAttribute::OTHER && !has(which)) {
            found_ |= u64{1} << static_cast<u8>(which);
            values_[static_cast<std::size_t>(which)] = unquoted(trimmed(text.substr(0, end)));
        }
        text.remove_prefix(std::min(end + 1, text.size()));
    }
}

i64 RowAttributes::number_or(RowAttribute which, i64 otherwise) const noexcept {
    i64 number = otherwise;
    return has(which) && to_number((*this)[which], number) ? number : otherwise;
}

}  // namespace memscope::kernel
