// Turns a fuzzer's bytes into the bytes of a ring: a small program whose instructions append records, holes, lies and
// noise. So random input, too, reaches what lies behind a valid header.
#pragma once

#include <cstring>
#include <vector>
#include "record/record.h"

namespace memscope {

class Input {
public:
    Input(const u8* bytes, std::size_t count) : at_(bytes), end_(bytes + count) {}
    bool empty() const { return at_ == end_; }
    u64 take(u32 bytes) {
        u64 value = 0;
        for (u32 i = 0; i < bytes && at_ != end_; ++i) value |= static_cast<u64>(*at_++) << (8 * i);
        return value;
    }

private:
    const u8* at_;
    const u8* end_;
};

struct BuiltRecords {
    std::vector<u64> words;
    u32 events = 0;  // whole ones
    u32 holes = 0;
    bool honest = true;  // nothing but whole records and holes: then a reader must find each of them
};

inline u64 header_word(u32 length, u32 kind, u32 flags, u32 version = kRecordVersion) {
    return static_cast<u64>(length) | static_cast<u64>(kind & 0xFF) << 32 | static_cast<u64>(flags & 0xFF) << 40 |
           static_cast<u64>(version & 0xFFFF) << 48;
}

inline BuiltRecords build_records(Input& input, std::size_t most_words) {
    BuiltRecords built;
    auto& words = built.words;
    const auto body = [&](u32 count, u64 value) { words.insert(words.end(), count, value); };
    while (!input.empty() && words.size() < most_words) {
        switch (input.take(1) % 10) {
            case 0:
            case 1:
            case 2: {  // an event
                const u32 kind = kFirstEventKind + static_cast<u32>(input.take(1)) % (kLastEventKind - kFirstEventKind);
                words.push_back(header_word(sizeof(EventRecord), kind, 0));
                body(sizeof(EventRecord) / 8 - 1, input.take(2));
                ++built.events;
                break;
            }
            case 3: {  // a string
                const u32 bytes = static_cast<u32>(input.take(2)) % (kMaxTextBytes + 1);
                const u32 padded = (bytes + 7) / 8;
                words.push_back(header_word(static_cast<u32>(sizeof(StringRecord)) + padded * 8,
                                            static_cast<u32>(Kind::STRING), 0));
                words.push_back(1 + input.take(1));
                words.push_back(bytes);
                body(padded, 0x6161616161616161);
                break;
            }
            case 4:  // a frame
                words.push_back(header_word(sizeof(FrameRecord), static_cast<u32>(Kind::FRAME), 0));
                body(sizeof(FrameRecord) / 8 - 1, input.take(1));
                break;
            case 5: {  // a stack
                const u32 count = static_cast<u32>(input.take(2)) % (kMaxFrames + 1);
                words.push_back(
                    header_word(static_cast<u32>(sizeof(StackRecord)) + count * 8, static_cast<u32>(Kind::STACK), 0));
                words.push_back(1 + input.take(1));
                words.push_back(count);
                body(count, 7);
                break;
            }
            case 6: {  // a hole, its body zeros or not
                const u32 count = static_cast<u32>(input.take(1)) % 64;
                words.push_back(0);
                body(count, input.take(1) % 2 * 0xABABABABABABABAB);
                ++built.holes;
                break;
            }
            case 7:  // a string or a stack that lies about its inside
                words.push_back(header_word(40, input.take(1) % 2 == 0 ? 1 : 3, 0));
                body(1, input.take(1));
                body(1, input.take(8));
                body(2, input.take(8));
                built.honest = false;
                break;
            case 8: {  // a header that may be anything
                const auto length = static_cast<u32>(input.take(2));
                const auto kind = static_cast<u32>(input.take(1));
                const auto version = input.take(1) % 2 == 0 ? kRecordVersion : static_cast<u32>(input.take(2));
                words.push_back(header_word(length, kind, 0, version));
                built.honest = false;
                break;
            }
            default:
                words.push_back(input.take(8));
                built.honest = false;
        }
    }
    return built;
}

}  // namespace memscope
