#include "kernel/attr_words.h"

#include <algorithm>
#include <cstddef>

namespace memscope::kernel {

namespace {

constexpr std::string_view kKey = "inefficient_type:";
constexpr std::string_view kMore[] = {",early_allocation", ",late_deallocation", ",temporary_idleness"};

bool is_of_word(char c) noexcept {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

// The end of the words that begin at `at`: a comma behind the first goes on only before another pattern.
std::size_t end_of_words(std::string_view text, std::size_t at) noexcept {
    while (at < text.size() && ((text[at] >= 'a' && text[at] <= 'z') || text[at] == '_')) ++at;
    for (bool is_more = true; is_more;) {
        is_more = false;
        for (const std::string_view word : kMore)
            if (text.substr(at, word.size()) == word) {
                at += word.size();
                is_more = true;
            }
    }
    return at;
}

}  // namespace

bool append_with_word(std::string& out, std::string_view attr, std::string_view word) {
    const std::size_t open = attr.find('{'), close = attr.rfind('}');
    if (open == std::string_view::npos || close == std::string_view::npos || close < open) return false;
    out.append(attr.substr(0, open + 1));
    const std::size_t begin = out.size();
    std::string_view left = attr.substr(open + 1, close - open - 1);
    for (std::size_t at = 0; (at = left.find(kKey, at)) != std::string_view::npos;) {
        if (at != 0 && is_of_word(left[at - 1])) {
            at += kKey.size();
            continue;
        }
        out.append(left.substr(0, at != 0 && left[at - 1] == ',' ? at - 1 : at));
        left.remove_prefix(end_of_words(left, at + kKey.size()));
        at = 0;
    }
    out.append(left);
    out.erase(begin, std::min(out.find_first_not_of(',', begin), out.size()) - begin);
    if (!word.empty()) {
        if (out.size() > begin) out.push_back(',');
        out.append(kKey).append(word);
    }
    out.append(attr.substr(close));
    return true;
}

}  // namespace memscope::kernel
