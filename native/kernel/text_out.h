// A growing buffer of text with appends that cost a few instructions each.
//
// room() makes sure that kRoom bytes are free behind what it is asked for. Literals and numbers are then written
// without a look at the capacity: between two calls of room() or text() they come to less than kRoom bytes.
#pragma once

#include <array>
#include <cstddef>
#include <cstring>
#include <memory>
#include <string_view>

#include "record/record.h"

namespace memscope::kernel {

class TextOut {
public:
    static constexpr std::size_t kRoom = 1024;

    std::string_view view() const noexcept { return {begin_.get(), size()}; }
    std::size_t size() const noexcept { return static_cast<std::size_t>(at_ - begin_.get()); }
    void clear() noexcept { at_ = begin_.get(); }
    char* position(std::size_t offset) noexcept { return begin_.get() + offset; }
    void cut(std::size_t size) noexcept { at_ = begin_.get() + size; }

    void room(std::size_t bytes = 0) {
        if (static_cast<std::size_t>(end_ - at_) < bytes + kRoom) grow(bytes + kRoom);
    }

    // Of any length.
    void text(std::string_view text) {
        room(text.size());
        words(text);
    }

    void put(char c) noexcept { *at_++ = c; }

    template <std::size_t N>
    void literal(const char (&text)[N]) noexcept {
        std::memcpy(at_, text, N - 1);
        at_ += N - 1;
    }

    // At most kRoom bytes together with what was written since room().
    void words(std::string_view text) noexcept {
        if (!text.empty()) std::memcpy(at_, text.data(), text.size());
        at_ += text.size();
    }

    void decimal(u64 value) noexcept {
        if (value < kHundredMillion) {
            leading(static_cast<u32>(value));
        } else if (const u64 high = value / kHundredMillion; high < kHundredMillion) {
            leading(static_cast<u32>(high));
            eight(digits(static_cast<u32>(value % kHundredMillion)));
        } else {
            leading(static_cast<u32>(high / kHundredMillion));
            eight(digits(static_cast<u32>(high % kHundredMillion)));
            eight(digits(static_cast<u32>(value % kHundredMillion)));
        }
    }

    void decimal(i64 value) noexcept {
        if (value < 0) put('-');
        decimal(value < 0 ? u64{0} - static_cast<u64>(value) : static_cast<u64>(value));
    }

    // 0x and 16 digits.
    void address(u64 value) noexcept {
        literal("0x");
        for (int shift = 56; shift >= 0; shift -= 8) {
            std::memcpy(at_, kHex.data() + 2 * (value >> shift & 0xFF), 2);
            at_ += 2;
        }
    }

private:
    // The two digits of every byte.
    static constexpr std::array<char, 512> kHex = [] {
        std::array<char, 512> digits{};
        for (std::size_t byte = 0; byte < 256; ++byte) {
            digits[2 * byte] = "0123456789abcdef"[byte >> 4];
            digits[2 * byte + 1] = "0123456789abcdef"[byte & 15];
        }
        return digits;
    }();
    static constexpr u64 kHundredMillion = 100'000'000;

    // Eight decimal digits, the first in the lowest byte, each 0 to 9: pairs, then single digits, side by side in one
    // word (P. Khuong, "How to print integers really fast", 2017).
    static u64 digits(u32 value) noexcept {
        const u64 halves = value / 10'000 | u64{value % 10'000} << 32;
        const u64 hundreds = (halves * 10'486 >> 20) & 0x0000007F'0000007Full;
        const u64 pairs = hundreds | (halves - 100 * hundreds) << 16;
        const u64 tens = (pairs * 103 >> 10) & 0x000F000F'000F000Full;
        return tens | (pairs - 10 * tens) << 8;
    }

    void eight(u64 digits) noexcept {
        digits |= kZeros;
        std::memcpy(at_, &digits, 8);
        at_ += 8;
    }

    // Without zeros ahead, but for the last digit.
    void leading(u32 value) noexcept {
        u64 text = digits(value);
        const int zeros = value == 0 ? 7 : __builtin_ctzll(text) / 8;
        text = (text | kZeros) >> (8 * zeros);
        std::memcpy(at_, &text, 8);
        at_ += 8 - zeros;
    }

    void grow(std::size_t bytes) {
        const std::size_t used = size();
        const std::size_t capacity = 2 * static_cast<std::size_t>(end_ - begin_.get()) + bytes;
        std::unique_ptr<char[]> larger(new char[capacity]);
        if (used != 0) std::memcpy(larger.get(), begin_.get(), used);
        begin_ = std::move(larger);
        at_ = begin_.get() + used;
        end_ = begin_.get() + capacity;
    }

    static constexpr u64 kZeros = 0x3030303030303030ull;

    std::unique_ptr<char[]> begin_;
    char* at_ = nullptr;
    char* end_ = nullptr;
};

}  // namespace memscope::kernel
