// Texts of cells, as whoever reads rows of others' files takes them.
#pragma once

#include <charconv>
#include <limits>
#include <string_view>

#include "record/record.h"

namespace memscope::kernel {

inline std::string_view trimmed(std::string_view text) noexcept {
    const auto is_blank = [](char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; };
    if (text.empty() || (text.front() > ' ' && text.back() > ' ')) return text;  // nearly always
    while (!text.empty() && is_blank(text.front())) text.remove_prefix(1);
    while (!text.empty() && is_blank(text.back())) text.remove_suffix(1);
    return text;
}

// Db cells keep the quotes that a csv cell has around it.
inline std::string_view unquoted(std::string_view text) noexcept {
    if (text.size() >= 2 && text.front() == '"' && text.back() == '"') return text.substr(1, text.size() - 2);
    return text;
}

inline constexpr std::size_t kSureDigits = 19;  // 10^19 - 1 fits into u64

// Decimal, or hexadecimal behind 0x, in the range of T.
template <typename T>
bool to_number(std::string_view text, T& number) noexcept {
    text = trimmed(text);
    if (!text.empty() && text.size() <= kSureDigits) {
        // Nearly every number: none so short is too large for 64 bits.
        u64 value = 0;
        std::size_t at = 0;
        for (; at < text.size() && text[at] >= '0' && text[at] <= '9'; ++at)
            value = value * 10 + static_cast<u64>(text[at] - '0');
        if (at == text.size() && value <= static_cast<u64>(std::numeric_limits<T>::max())) {
            number = static_cast<T>(value);
            return true;
        }
    }
    const bool is_hex = text.size() > 2 && text[0] == '0' && (text[1] == 'x' || text[1] == 'X');
    if (is_hex) text.remove_prefix(2);
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, is_hex ? 16 : 10);
    return error == std::errc() && end == text.data() + text.size() && !text.empty();
}

}  // namespace memscope::kernel
