// The checksum of a watched block, as upstream computes it: a CRC of 64 bits that shifts to the right, with the
// polynomial of ECMA-182 (0x42F0E1EBA9EA3693) taken as it is written instead of mirrored, all ones before and after.
//
// Eight bytes at a time by eight tables (Kounavis and Berry, "Novel table lookup-based algorithms for high-performance
// CRC generation", 2008), which holds for any polynomial of a CRC that shifts to the right.
#pragma once

#include <cstddef>

#include "record/record.h"

namespace memscope {

struct Crc64Tables {
    u64 of[8][256] = {};

    constexpr Crc64Tables() noexcept {
        for (u32 byte = 0; byte < 256; ++byte) {
            u64 sum = byte;
            for (u32 bit = 0; bit < 8; ++bit) sum = sum >> 1 ^ ((sum & 1) != 0 ? 0x42F0E1EBA9EA3693ull : 0);
            of[0][byte] = sum;
        }
        for (u32 more = 1; more < 8; ++more)
            for (u32 byte = 0; byte < 256; ++byte)
                of[more][byte] = of[more - 1][byte] >> 8 ^ of[0][of[more - 1][byte] & 0xFF];
    }
};
inline constexpr Crc64Tables kCrc64Tables{};

class Crc64 {
public:
    void add(const void* bytes, std::size_t count) noexcept {
        const auto* at = static_cast<const u8*>(bytes);
        u64 sum = sum_;
        for (; count >= 8; count -= 8, at += 8) {
            u64 word = 0;
            __builtin_memcpy(&word, at, 8);
            sum ^= word;
            sum = kCrc64Tables.of[7][sum & 0xFF] ^ kCrc64Tables.of[6][sum >> 8 & 0xFF] ^
                  kCrc64Tables.of[5][sum >> 16 & 0xFF] ^ kCrc64Tables.of[4][sum >> 24 & 0xFF] ^
                  kCrc64Tables.of[3][sum >> 32 & 0xFF] ^ kCrc64Tables.of[2][sum >> 40 & 0xFF] ^
                  kCrc64Tables.of[1][sum >> 48 & 0xFF] ^ kCrc64Tables.of[0][sum >> 56];
        }
        for (; count > 0; --count, ++at) sum = kCrc64Tables.of[0][(sum ^ *at) & 0xFF] ^ sum >> 8;
        sum_ = sum;
    }
    u64 value() const noexcept { return ~sum_; }

private:
    u64 sum_ = ~u64{0};
};

}  // namespace memscope
