// Reads a pickle that holds plain data, and builds nothing else: no object of Python exists while it is read.
//
// In: bytes, as a source gives them. Out: values in arenas: None, booleans, numbers, texts, lists, tuples and dicts. A
// pickle is a program; the instructions that name a class or call something (GLOBAL, REDUCE, BUILD, ...) are not known
// here, so there is nothing that a hostile file could run. What else it could do is bounded:
//
//   memory   every arena grows by what an instruction of the file brought, and all together up to a limit. A length in
//            the file is believed only as far as its bytes come. PUT may name the next place of the memo, no other.
//   depth    values refer to each other by number: nothing here recurses, however deep they are nested, or in a circle.
//   texts    each is kept once, and cut at kMaxTextBytes as everywhere; numbers beyond 64 bits and bytes are only
//   noted.
//
// The instructions are those of protocols 2 to 5 (CPython's Lib/pickletools.py describes them).
#pragma once

#include <cstddef>
#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "kernel/large_pages.h"
#include "record/record.h"

namespace memscope::kernel {

class PickleError : public std::runtime_error {
public:
    using std::runtime_error::runtime_error;
};

class PickleData {
public:
    enum class Type : u8 { NONE, BOOL, INT, WIDE, HUGE_INT, FLOAT, TEXT, BYTES, LIST, TUPLE, DICT };

    // A value: its type in the low bits, above them the number itself or its place in an arena.
    class Value {
    public:
        Value() = default;
        Value(Type type, u64 payload) noexcept : bits_(payload << kTypeBits | static_cast<u64>(type)) {}
        Type type() const noexcept { return static_cast<Type>(bits_ & ((1u << kTypeBits) - 1)); }
        u64 payload() const noexcept { return bits_ >> kTypeBits; }
        i64 small() const noexcept { return static_cast<i64>(bits_) >> kTypeBits; }
        bool operator==(Value other) const noexcept { return bits_ == other.bits_; }

    private:
        static constexpr int kTypeBits = 4;
        u64 bits_ = 0;
    };

    // Fills a buffer with up to so many bytes, and says with how many; 0: there are no more.
    using Source = std::function<std::size_t(char* buffer, std::size_t bytes)>;

    // max_bytes: of all arenas together. Throws PickleError for whatever is no pickle of plain data.
    PickleData(Source source, u64 max_bytes);

    Value root() const noexcept { return root_; }

    // Lists and tuples: their elements. Dicts: key, value, key, value, ... of which the last of equal keys counts.
    struct Cells {
        const Value* begin;
        std::size_t size;
        Value operator[](std::size_t at) const noexcept { return begin[at]; }
    };
    Cells cells(Value container) const noexcept {
        const Container& one = containers_[container.payload()];
        return Cells{cells_.data() + one.begin, one.size};
    }
    std::size_t containers() const noexcept { return containers_.size(); }

    // The value of a key, which is a text; NONE where there is none.
    Value find(Value dict, Value key) const noexcept {
        if (dict.type() != Type::DICT) return {};
        const Cells items = cells(dict);
        for (std::size_t at = items.size; at >= 2; at -= 2)
            if (items[at - 2] == key) return items[at - 1];
        return {};
    }
    // A text that stands in the file, else the value of none: each is looked for through all.
    Value value_of(std::string_view word) const noexcept;

    // False when it is no number of 64 bits: signed, or unsigned (addresses), which comes as the same bits.
    bool to_int(Value value, i64& number) const noexcept;

    std::size_t texts() const noexcept { return text_ids_.size(); }
    std::string_view text(std::size_t number) const noexcept {
        return std::string_view(text_).substr(text_ends_[number], text_ends_[number + 1] - text_ends_[number]);
    }
    u64 text_id_of(std::size_t number) const noexcept { return text_ids_[number]; }

private:
    struct Container {
        u64 begin;
        u32 size, capacity;
    };

    int next() { return static_cast<unsigned char>(*take(1)); }
    const char* take(std::size_t bytes) {  // in one piece, at most kPiece
        if (end_ - at_ < bytes) fill(bytes);
        at_ += bytes;
        return buffer_.data() + at_ - bytes;
    }
    void fill(std::size_t bytes);
    void skip(u64 bytes);
    template <typename T>
    T little(std::size_t bytes = sizeof(T));
    [[noreturn]] void fail(const std::string& why) const;

    void run();
    [[noreturn]] void refuse(int op) const;
    void push(Value value);
    Value pop();
    std::size_t pop_mark();
    void put(u64 at);
    void get(u64 at);
    Value wide(i64 number, bool is_unsigned);
    Value integer(i64 number) { return wide(number, false); }
    Value read_long(u64 bytes);
    Value read_text(u64 bytes);
    Value intern(std::string_view text);
    std::size_t place_of(std::string_view text) const noexcept;
    Value contain(Type type, std::size_t from);
    void extend(Value container, std::size_t from, Type type);
    void charge(u64 bytes);

    Source source_;
    std::vector<char> buffer_;
    std::size_t at_ = 0, end_ = 0;
    u64 before_ = 0;  // bytes of the file before the buffer
    u64 left_;        // bytes that the arenas may still take

    Value root_;
    std::vector<Value> stack_;
    std::vector<Value, LargePages<Value>> memo_, cells_;
    std::vector<std::size_t> marks_;
    std::vector<Container, LargePages<Container>> containers_;
    std::vector<u64> wide_;
    std::string text_;
    std::vector<u64> text_ends_{0}, text_ids_;
    std::vector<u32> text_places_;  // a hash table of numbers of texts, +1
    u64 salt_;
};

}  // namespace memscope::kernel
