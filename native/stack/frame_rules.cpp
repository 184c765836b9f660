#include "stack/frame_rules.h"

#include <atomic>
#include <cstring>

#include "stack/code_objects.h"

namespace memscope {

#if defined(__x86_64__)

namespace {

// DWARF's numbers of the registers we follow.
constexpr u64 kFp = 6;
constexpr u64 kSp = 7;
constexpr u64 kReturnAddress = 16;

constexpr u64 kNone = static_cast<u64>(Cfa::NONE);

// Reads what compilers write; runs off its end into `failed` instead of into other memory.
class Reader {
public:
    Reader(const char* begin, const char* end) noexcept : at_(begin), end_(end) {}
    bool has_more() const noexcept { return at_ < end_ && !failed; }
    const char* at() const noexcept { return at_; }

    template <typename Value>
    Value fixed() noexcept {
        Value value = {};
        if (!skip(sizeof value)) return value;
        memcpy(&value, at_ - sizeof value, sizeof value);
        return value;
    }
    bool skip(u64 bytes) noexcept {
        if (failed || static_cast<u64>(end_ - at_) < bytes) {
            failed = true;
            return false;
        }
        at_ += bytes;
        return true;
    }
    u64 uleb() noexcept { return leb(nullptr); }
    i64 sleb() noexcept {
        u32 bits = 0;
        const u64 value = leb(&bits);
        const bool negative = bits > 0 && bits < 64 && (value >> (bits - 1) & 1) != 0;
        return static_cast<i64>(negative ? value | ~u64{0} << bits : value);
    }
    // An address in one of the encodings that GCC and Clang use for code: absolute or relative to where it stands.
    u64 pointer(u8 encoding) noexcept {
        const u64 base = (encoding & 0x70) == 0x10 ? reinterpret_cast<u64>(at_) : 0;
        if ((encoding & 0xF0) != 0x10 && (encoding & 0xF0) != 0) failed = true;
        switch (encoding & 0x0F) {
            case 0x00:
            case 0x04:
            case 0x0C:
                return base + fixed<u64>();
            case 0x03:
                return base + fixed<u32>();
            case 0x0B:
                return base + static_cast<u64>(static_cast<i64>(fixed<i32>()));
            default:
                failed = true;
                return 0;
        }
    }

    bool failed = false;

private:
    u64 leb(u32* bits) noexcept {
        u64 value = 0;
        for (u32 shift = 0;; shift += 7) {
            const u8 byte = fixed<u8>();
            if (shift < 64) value |= static_cast<u64>(byte & 0x7F) << shift;
            if ((byte & 0x80) == 0) {
                if (bits != nullptr) *bits = shift + 7;
                return value;
            }
            if (failed || shift > 63) {
                failed = true;
                return 0;
            }
        }
    }

    const char* at_;
    const char* end_;
};

// One row of the table that call frame instructions describe, for the registers we follow.
struct Row {
    Cfa cfa = Cfa::NONE;
    i64 cfa_offset = 0;
    SavedFp fp = SavedFp::SAME;
    i64 fp_offset = 0;
    bool fp_is_lost = false;  // saved where we cannot follow
    i64 return_offset = 0;    // from the CFA
    bool has_return = false;
    bool is_outermost = false;
};

struct Description {  // a CIE
    bool is_signal_frame = false;
    u64 code_alignment = 1;
    i64 data_alignment = 1;
    u8 pointer_encoding = 0;
    bool has_augmentation = false;
    Reader instructions{nullptr, nullptr};
};

void define_cfa(Row& row, u64 reg, i64 offset) noexcept {
    row.cfa = reg == kSp ? Cfa::SP : reg == kFp ? Cfa::FP : Cfa::NONE;
    row.cfa_offset = offset;
}

void save(Row& row, u64 reg, i64 offset) noexcept {
    if (reg == kFp) {
        row.fp = SavedFp::AT_CFA;
        row.fp_offset = offset;
        row.fp_is_lost = false;
    } else if (reg == kReturnAddress) {
        row.return_offset = offset;
        row.has_return = true;
        row.is_outermost = false;
    }
}

void lose(Row& row, u64 reg) noexcept {
    if (reg == kFp) row.fp_is_lost = true;
    if (reg == kReturnAddress) row.has_return = false;
}

void restore(Row& row, u64 reg, const Row& initial) noexcept {
    if (reg == kFp) {
        row.fp = initial.fp;
        row.fp_offset = initial.fp_offset;
        row.fp_is_lost = initial.fp_is_lost;
    } else if (reg == kReturnAddress) {
        row.return_offset = initial.return_offset;
        row.has_return = initial.has_return;
        row.is_outermost = initial.is_outermost;
    }
}

// DW_OP_breg6 offset, then nothing or DW_OP_deref: what GCC writes for functions that align their stack.
bool is_at_fp(Reader block, bool dereferenced, i64& offset) noexcept {
    if (block.fixed<u8>() != 0x76) return false;
    offset = block.sleb();
    if (dereferenced && block.fixed<u8>() != 0x06) return false;
    return !block.failed && !block.has_more();
}

Reader block_at(Reader& reader) noexcept {
    const u64 bytes = reader.uleb();
    const char* begin = reader.at();
    return reader.skip(bytes) ? Reader(begin, begin + bytes) : Reader(begin, begin);
}

// Runs call frame instructions up to the row that holds at `address`. False: they say something we do not know.
bool run(Reader& code, const Description& cie, u64 location, u64 address, const Row& initial, Row& row) noexcept {
    constexpr u32 kMostSaved = 8;
    Row saved[kMostSaved];
    u32 saved_count = 0;
    const auto advance = [&](u64 delta) { location += delta * cie.code_alignment; };
    const auto factored = [&](u64 value) { return static_cast<i64>(value) * cie.data_alignment; };
    while (code.has_more() && location <= address) {
        const u8 instruction = code.fixed<u8>();
        const u8 low = instruction & 0x3F;
        u64 reg = 0;
        i64 offset = 0;
        switch (instruction >> 6) {
            case 1:
                advance(low);
                continue;
            case 2:
                save(row, low, factored(code.uleb()));
                continue;
            case 3:
                restore(row, low, initial);
                continue;
            default:
                break;
        }
        switch (instruction) {
            case 0x00:  // nop
                break;
            case 0x02:
                advance(code.fixed<u8>());
                break;
            case 0x03:
                advance(code.fixed<u16>());
                break;
            case 0x04:
                advance(code.fixed<u32>());
                break;
            case 0x05:  // offset_extended
                reg = code.uleb();
                save(row, reg, factored(code.uleb()));
                break;
            case 0x06:  // restore_extended
                restore(row, code.uleb(), initial);
                break;
            case 0x07:  // undefined
                reg = code.uleb();
                lose(row, reg);
                if (reg == kReturnAddress) row.is_outermost = true;
                break;
            case 0x08:  // same_value
                reg = code.uleb();
                if (reg == kFp) {
                    row.fp = SavedFp::SAME;
                    row.fp_is_lost = false;
                } else {
                    lose(row, reg);
                }
                break;
            case 0x09:  // register
                lose(row, code.uleb());
                code.uleb();
                break;
            case 0x0A:  // remember_state
                if (saved_count == kMostSaved) return false;
                saved[saved_count++] = row;
                break;
            case 0x0B:  // restore_state
                if (saved_count == 0) return false;
                row = saved[--saved_count];
                break;
            case 0x0C:  // def_cfa
                reg = code.uleb();
                define_cfa(row, reg, static_cast<i64>(code.uleb()));
                break;
            case 0x0D:  // def_cfa_register
                define_cfa(row, code.uleb(), row.cfa_offset);
                break;
            case 0x0E:  // def_cfa_offset
                row.cfa_offset = static_cast<i64>(code.uleb());
                break;
            case 0x0F:  // def_cfa_expression
                row.cfa = is_at_fp(block_at(code), true, row.cfa_offset) ? Cfa::AT_FP : Cfa::NONE;
                break;
            case 0x10:  // expression
                reg = code.uleb();
                lose(row, reg);
                if (is_at_fp(block_at(code), false, offset) && reg == kFp) {
                    row.fp = SavedFp::AT_FP;
                    row.fp_offset = offset;
                    row.fp_is_lost = false;
                }
                break;
            case 0x11:  // offset_extended_sf
                reg = code.uleb();
                save(row, reg, code.sleb() * cie.data_alignment);
                break;
            case 0x12:  // def_cfa_sf
                reg = code.uleb();
                define_cfa(row, reg, code.sleb() * cie.data_alignment);
                break;
            case 0x13:  // def_cfa_offset_sf
                row.cfa_offset = code.sleb() * cie.data_alignment;
                break;
            case 0x14:  // val_offset
            case 0x15:  // val_offset_sf
                lose(row, code.uleb());
                code.uleb();
                break;
            case 0x16:  // val_expression
                lose(row, code.uleb());
                block_at(code);
                break;
            case 0x2E:  // GNU_args_size
                code.uleb();
                break;
            default:
                return false;
        }
    }
    return !code.failed;
}

u64 pack(const Row& row) noexcept {
    if (row.is_outermost) return static_cast<u64>(Cfa::OUTERMOST);
    constexpr i64 kMostCfa = 1 << 22, kMostFp = 1 << 16;
    if (row.cfa == Cfa::NONE || row.fp_is_lost || !row.has_return || row.return_offset != -8 ||
        row.cfa_offset > kMostCfa || row.cfa_offset < -kMostCfa || row.fp_offset > kMostFp || row.fp_offset < -kMostFp)
        return kNone;
    return static_cast<u64>(row.cfa) | static_cast<u64>(row.fp) << 4 |
           (static_cast<u64>(row.fp_offset) & 0x3FFFF) << 6 | (static_cast<u64>(row.cfa_offset) & 0xFFFFFF) << 24;
}

// An object as it lies in memory: nothing is read outside of it.
struct Bounds {
    const char* begin;
    const char* end;
    bool contain(const char* at, u64 bytes) const noexcept {
        return at >= begin && at <= end && static_cast<u64>(end - at) >= bytes;
    }
};

// A length word and what it measures; the 64-bit form is not used by anyone for .eh_frame.
Reader entry_at(const char* at, Bounds object) noexcept {
    u32 bytes = 0;
    if (!object.contain(at, sizeof bytes)) return Reader(at, at);
    memcpy(&bytes, at, sizeof bytes);
    if (bytes == 0 || bytes == ~0u || !object.contain(at + sizeof bytes, bytes)) return Reader(at, at);
    return Reader(at + sizeof bytes, at + sizeof bytes + bytes);
}

bool read_description(const char* at, Bounds object, Description& cie) noexcept {
    Reader reader = entry_at(at, object);
    if (reader.fixed<u32>() != 0) return false;
    const u8 version = reader.fixed<u8>();
    if (version != 1 && version != 3) return false;
    const char* augmentation = reader.at();
    while (reader.fixed<char>() != 0)
        if (reader.failed) return false;
    cie.code_alignment = reader.uleb();
    cie.data_alignment = reader.sleb();
    if ((version == 1 ? reader.fixed<u8>() : reader.uleb()) != kReturnAddress) return false;
    if (*augmentation == 'z') {
        cie.has_augmentation = true;
        const u64 bytes = reader.uleb();
        Reader data = reader;
        if (!reader.skip(bytes)) return false;
        for (const char* letter = augmentation + 1; *letter != 0; ++letter) {
            if (*letter == 'R') {
                cie.pointer_encoding = data.fixed<u8>();
            } else if (*letter == 'P') {
                const u8 encoding = data.fixed<u8>();
                data.pointer(encoding & 0x1F);
            } else if (*letter == 'L') {
                data.fixed<u8>();
            } else if (*letter == 'S') {
                cie.is_signal_frame = true;
            } else {
                return false;
            }
        }
        if (data.failed) return false;
    } else if (*augmentation != 0) {
        return false;
    }
    cie.instructions = reader;
    return !reader.failed;
}

u64 rule_from(const char* fde, Bounds object, u64 address) noexcept {
    Reader reader = entry_at(fde, object);
    const char* const here = reader.at();
    const u32 back = reader.fixed<u32>();
    Description cie;
    if (reader.failed || back == 0 || !read_description(here - back, object, cie)) return kNone;
    const u64 begin = reader.pointer(cie.pointer_encoding);
    const u64 bytes = reader.pointer(cie.pointer_encoding & 0x0F);
    if (cie.has_augmentation) block_at(reader);
    if (reader.failed || address < begin || address - begin >= bytes) return kNone;
    if (cie.is_signal_frame) return static_cast<u64>(Cfa::SIGNAL);
    Row initial;
    if (!run(cie.instructions, cie, 0, ~u64{0}, initial, initial)) return kNone;
    Row row = initial;
    return run(reader, cie, begin, address, initial, row) ? pack(row) : kNone;
}

// In an .eh_frame_hdr with the sorted table that every linker writes: the last function that begins at or before the
// address.
const char* entry_for(const char* header, Bounds object, u64 address) noexcept {
    struct Place {
        i32 begin, entry;  // relative to the header
    };
    constexpr u8 kFourBytes = 0x03, kRelativeToHeader = 0x3B;
    if (!object.contain(header, 12)) return nullptr;
    const auto byte = [&](int at) { return static_cast<u8>(header[at]); };
    if (byte(0) != 1 || (byte(1) & 0x07) != kFourBytes || byte(2) != kFourBytes || byte(3) != kRelativeToHeader)
        return nullptr;
    u32 count = 0;
    memcpy(&count, header + 8, sizeof count);
    if (!object.contain(header + 12, count * u64{sizeof(Place)})) return nullptr;
    const i64 wanted = static_cast<i64>(address - reinterpret_cast<u64>(header));
    const auto place = [&](u32 index) {
        Place one;
        memcpy(&one, header + 12 + u64{index} * sizeof one, sizeof one);
        return one;
    };
    u32 low = 0, high = count;  // the first function that begins behind the address
    while (low < high) {
        const u32 middle = low + (high - low) / 2;
        if (place(middle).begin <= wanted)
            low = middle + 1;
        else
            high = middle;
    }
    return low == 0 ? nullptr : header + place(low - 1).entry;
}

// False: it may be found later.
bool look_up(u64 address, u64& rule) noexcept {
    rule = kNone;
    CodeObject object;
    const Sight sight = code_object_at(address, object);
    if (sight != Sight::KNOWN) return sight == Sight::NOTHING;
    if (object.frame_table == 0) return true;
    const Bounds bounds = {reinterpret_cast<const char*>(object.begin), reinterpret_cast<const char*>(object.end)};
    const char* const entry = entry_for(reinterpret_cast<const char*>(object.frame_table), bounds, address);
    if (entry != nullptr) rule = rule_from(entry, bounds, address);
    return true;
}

// --- the table of known rules ------------------------------------------------------------------------------------

struct Known {
    std::atomic<u64> key;
    std::atomic<u64> rule;  // 0: being written
};
constexpr u32 kSlots = 1u << 16;
constexpr u32 kMostProbes = 16;
Known g_known[kSlots];  // untouched pages cost nothing
std::atomic<u32> g_used{0};
std::atomic<u64> g_generation{0};

u64 proof_of(u64 key) noexcept { return mix64(key) & 0xFFFF'0000'0000'0000ull; }

}  // namespace

// Slots may be emptied and filled again between two loads of a reader: the rule proves that it belongs to the key.
u64 rule_of(u64 address) noexcept {
    const u64 key = address ^ g_generation.load(std::memory_order_relaxed) << 48;
    const u64 proof = proof_of(key);
    Known* empty = nullptr;
    for (u32 probe = 0; probe < kMostProbes && empty == nullptr; ++probe) {
        Known& known = g_known[((key * 0x9E3779B97F4A7C15ull >> 48) + probe) % kSlots];
        const u64 there = known.key.load(std::memory_order_relaxed);
        if (there == key) {
            const u64 rule = known.rule.load(std::memory_order_relaxed);
            if (rule != 0 && (rule ^ proof) >> 48 == 0) return rule;
            break;
        }
        if (there == 0) empty = &known;
    }
    u64 rule = 0;
    const bool is_certain = look_up(address, rule);
    rule |= proof;
    u64 none = 0;
    if (is_certain && empty != nullptr && empty->key.compare_exchange_strong(none, key, std::memory_order_relaxed)) {
        empty->rule.store(rule, std::memory_order_relaxed);
        g_used.fetch_add(1, std::memory_order_relaxed);
    }
    return rule;
}

void forget_rules() noexcept {
    g_generation.fetch_add(1, std::memory_order_relaxed);
    if (g_used.load(std::memory_order_relaxed) < kSlots / 2) return;
    g_used.store(0, std::memory_order_relaxed);
    for (Known& known : g_known) {
        known.rule.store(0, std::memory_order_relaxed);
        known.key.store(0, std::memory_order_relaxed);
    }
}

u64 code_generation() noexcept { return g_generation.load(std::memory_order_relaxed) & 0xFFFF; }

#else  // elsewhere frames are chained, see native_walk.cpp

u64 rule_of(u64) noexcept { return static_cast<u64>(Cfa::NONE); }

namespace {
std::atomic<u64> g_generation{0};
}

void forget_rules() noexcept { g_generation.fetch_add(1, std::memory_order_relaxed); }
u64 code_generation() noexcept { return g_generation.load(std::memory_order_relaxed) & 0xFFFF; }

#endif

}  // namespace memscope
