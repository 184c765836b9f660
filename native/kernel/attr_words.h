// The text of a csv's Attr with another inefficient_type: `{k:v,k:v}`, behind whose last pair the word stands.
//
// In: pieces of a file, and where in them texts of Attr lie that are to change. Out: the pieces with what they say now;
// every other byte is as it was.
#pragma once

#include <string>
#include <string_view>

namespace memscope::kernel {

// Appends `attr` to `out`, without an inefficient_type that it has, and with `word` as one where that is not empty.
// False: it is not in braces, so it is no Attr.
bool append_with_word(std::string& out, std::string_view attr, std::string_view word);

}  // namespace memscope::kernel
