#include "kernel/pickle_data.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <utility>

namespace memscope::kernel {

namespace {

constexpr std::size_t kPiece = 1u << 20;
constexpr i64 kSmallest = -(i64{1} << 59), kLargest = (i64{1} << 59) - 1;
constexpr u32 kMostCells = 1u << 31;

enum Op : unsigned char {
    MARK = '(',
    STOP = '.',
    POP = '0',
    POP_MARK = '1',
    DUP = '2',
    BININT = 'J',
    BININT1 = 'K',
    BININT2 = 'M',
    NONE = 'N',
    BINSTRING = 'T',
    SHORT_BINSTRING = 'U',
    BINUNICODE = 'X',
    APPEND = 'a',
    DICT = 'd',
    EMPTY_DICT = '}',
    APPENDS = 'e',
    BINGET = 'h',
    LONG_BINGET = 'j',
    LIST = 'l',
    EMPTY_LIST = ']',
    BINPUT = 'q',
    LONG_BINPUT = 'r',
    SETITEM = 's',
    TUPLE = 't',
    EMPTY_TUPLE = ')',
    SETITEMS = 'u',
    BINFLOAT = 'G',
    BINBYTES = 'B',
    SHORT_BINBYTES = 'C',
    PROTO = 0x80,
    TUPLE1 = 0x85,
    TUPLE2 = 0x86,
    TUPLE3 = 0x87,
    NEWTRUE = 0x88,
    NEWFALSE = 0x89,
    LONG1 = 0x8a,
    LONG4 = 0x8b,
    SHORT_BINUNICODE = 0x8c,
    BINUNICODE8 = 0x8d,
    BINBYTES8 = 0x8e,
    MEMOIZE = 0x94,
    FRAME = 0x95,
};

// Instructions that name or build an object of Python.
const char* builds(int op) noexcept {
    switch (op) {
        case 'c':
            return "GLOBAL";
        case 0x93:
            return "STACK_GLOBAL";
        case 'R':
            return "REDUCE";
        case 'b':
            return "BUILD";
        case 'i':
            return "INST";
        case 'o':
            return "OBJ";
        case 0x81:
            return "NEWOBJ";
        case 0x92:
            return "NEWOBJ_EX";
        case 'P':
            return "PERSID";
        case 'Q':
            return "BINPERSID";
        case 0x82:
        case 0x83:
        case 0x84:
            return "EXT";
        case 0x8f:
            return "EMPTY_SET";
        case 0x90:
            return "ADDITEMS";
        case 0x91:
            return "FROZENSET";
        case 0x96:
            return "BYTEARRAY8";
        case 0x97:
            return "NEXT_BUFFER";
        case 0x98:
            return "READONLY_BUFFER";
        default:
            return nullptr;
    }
}

u64 random_factor() {
    std::random_device device;
    return (u64{device()} << 32 | device()) | 1;
}

}  // namespace

PickleData::PickleData(Source source, u64 max_bytes)
    : source_(std::move(source)),
      buffer_(2 * kPiece),
      left_(max_bytes),
      text_places_(1u << 10),
      salt_(random_factor()) {
    run();
    stack_ = {};
    memo_ = {};
    buffer_ = {};
    text_places_ = {};
}

PickleData::Value PickleData::value_of(std::string_view word) const noexcept {
    for (std::size_t number = 0; number < texts(); ++number)
        if (text(number) == word) return Value(Type::TEXT, number);
    return Value(Type::TEXT, texts());
}

bool PickleData::to_int(Value value, i64& number) const noexcept {
    if (value.type() == Type::INT)
        number = value.small();
    else if (value.type() == Type::WIDE)
        number = static_cast<i64>(wide_[value.payload()]);
    else
        return false;
    return true;
}

// ---------------------------------------------------------------------------------------------- bytes

void PickleData::fill(std::size_t bytes) {
    std::memmove(buffer_.data(), buffer_.data() + at_, end_ - at_);
    before_ += at_;
    end_ -= at_;
    at_ = 0;
    while (end_ < bytes) {
        const std::size_t got = source_(buffer_.data() + end_, std::min(buffer_.size() - end_, kPiece));
        if (got == 0) fail("the file ends in the middle: it is cut off");
        end_ += got;
    }
}

void PickleData::skip(u64 bytes) {
    while (bytes > 0) {
        const std::size_t piece = static_cast<std::size_t>(std::min<u64>(bytes, kPiece));
        take(piece);
        bytes -= piece;
    }
}

template <typename T>
T PickleData::little(std::size_t bytes) {
    T value{};
    std::memcpy(&value, take(bytes), bytes);
    return value;
}

void PickleData::fail(const std::string& why) const {
    throw PickleError(why + " (byte " + std::to_string(before_ + at_) + ")");
}

void PickleData::charge(u64 bytes) {
    if (bytes > left_) fail("what it holds does not fit into the memory that is set for it");
    left_ -= bytes;
}

// ---------------------------------------------------------------------------------------------- instructions

void PickleData::run() {
    if (next() != PROTO || next() > 5) fail("it does not begin as a pickle of protocol 2 to 5 does");
    for (;;) {
        const int op = next();
        switch (op) {
            case PROTO:
                next();
                break;
            case FRAME:
                skip(sizeof(u64));
                break;
            case STOP:
                root_ = pop();
                return;
            case MARK:
                charge(sizeof(std::size_t));
                marks_.push_back(stack_.size());
                break;
            case POP:
                pop();
                break;
            case POP_MARK:
                stack_.resize(pop_mark());
                break;
            case DUP: {
                const Value top = pop();
                push(top);
                push(top);
                break;
            }
            case NONE:
                push(Value());
                break;
            case NEWTRUE:
                push(Value(Type::BOOL, 1));
                break;
            case NEWFALSE:
                push(Value(Type::BOOL, 0));
                break;
            case BININT:
                push(integer(little<i32>()));
                break;
            case BININT1:
                push(integer(next()));
                break;
            case BININT2:
                push(integer(little<u16>()));
                break;
            case LONG1:
                push(read_long(little<u8>()));
                break;
            case LONG4:
                push(read_long(little<u32>()));
                break;
            case BINFLOAT:
                skip(sizeof(double));
                push(Value(Type::FLOAT, 0));
                break;
            case BINSTRING:
            case BINUNICODE:
                push(read_text(little<u32>()));
                break;
            case SHORT_BINSTRING:
            case SHORT_BINUNICODE:
                push(read_text(little<u8>()));
                break;
            case BINUNICODE8:
                push(read_text(little<u64>()));
                break;
            case BINBYTES:
                skip(little<u32>()), push(Value(Type::BYTES, 0));
                break;
            case SHORT_BINBYTES:
                skip(little<u8>()), push(Value(Type::BYTES, 0));
                break;
            case BINBYTES8:
                skip(little<u64>()), push(Value(Type::BYTES, 0));
                break;
            case EMPTY_LIST:
                push(contain(Type::LIST, stack_.size()));
                break;
            case EMPTY_TUPLE:
                push(contain(Type::TUPLE, stack_.size()));
                break;
            case EMPTY_DICT:
                push(contain(Type::DICT, stack_.size()));
                break;
            case LIST:
                push(contain(Type::LIST, pop_mark()));
                break;
            case TUPLE:
                push(contain(Type::TUPLE, pop_mark()));
                break;
            case DICT:
                push(contain(Type::DICT, pop_mark()));
                break;
            case TUPLE1:
            case TUPLE2:
            case TUPLE3: {
                const std::size_t size = static_cast<std::size_t>(op - TUPLE1) + 1;
                const std::size_t open = marks_.empty() ? 0 : marks_.back();
                if (stack_.size() < open + size) fail("a tuple has too few elements");
                push(contain(Type::TUPLE, stack_.size() - size));
                break;
            }
            case APPEND: {
                if (stack_.size() < 2) fail("there is nothing to append to");
                extend(stack_[stack_.size() - 2], stack_.size() - 1, Type::LIST);
                break;
            }
            case SETITEM: {
                if (stack_.size() < 3) fail("there is nothing to set an item of");
                extend(stack_[stack_.size() - 3], stack_.size() - 2, Type::DICT);
                break;
            }
            case APPENDS:
            case SETITEMS: {
                const std::size_t from = pop_mark();
                if (from == 0) fail("there is nothing to append to");
                extend(stack_[from - 1], from, op == APPENDS ? Type::LIST : Type::DICT);
                break;
            }
            case MEMOIZE:
                put(memo_.size());
                break;
            case BINPUT:
                put(little<u8>());
                break;
            case LONG_BINPUT:
                put(little<u32>());
                break;
            case BINGET:
                get(little<u8>());
                break;
            case LONG_BINGET:
                get(little<u32>());
                break;
            default:
                refuse(op);
        }
    }
}

void PickleData::refuse(int op) const {
    if (const char* name = builds(op))
        fail(std::string("it asks Python for an object (") + name +
             "): a memory snapshot holds plain data alone, and this file may run code in whoever loads it");
    fail("it holds what is no instruction of a pickle");
}

void PickleData::push(Value value) {
    if (stack_.size() == stack_.capacity()) charge(std::max<u64>(stack_.size(), 64) * sizeof(Value));
    stack_.push_back(value);
}

PickleData::Value PickleData::pop() {
    if (stack_.empty() || (!marks_.empty() && marks_.back() == stack_.size())) fail("it takes what is not there");
    const Value top = stack_.back();
    stack_.pop_back();
    return top;
}

std::size_t PickleData::pop_mark() {
    if (marks_.empty() || marks_.back() > stack_.size()) fail("it goes back to a mark that it did not set");
    const std::size_t at = marks_.back();
    marks_.pop_back();
    return at;
}

void PickleData::put(u64 at) {
    if (stack_.empty()) fail("it remembers what is not there");
    // Some counted from 1.
    if (at > memo_.size() + 1) fail("it remembers something at a place that is not the next");
    if (at < memo_.size()) {
        memo_[at] = stack_.back();
        return;
    }
    charge((at + 1 - memo_.size()) * sizeof(Value));
    if (at > memo_.size()) memo_.emplace_back();
    memo_.push_back(stack_.back());
}

void PickleData::get(u64 at) {
    if (at >= memo_.size()) fail("it refers to what it did not remember");
    push(memo_[at]);
}

PickleData::Value PickleData::wide(i64 number, bool is_unsigned) {
    if (number >= kSmallest && number <= kLargest && !(is_unsigned && number < 0))
        return Value(Type::INT, static_cast<u64>(number));
    charge(sizeof(u64));
    wide_.push_back(static_cast<u64>(number));
    return Value(Type::WIDE, wide_.size() - 1);
}

PickleData::Value PickleData::read_long(u64 bytes) {
    if (bytes == 0) return integer(0);
    // Nine bytes hold an unsigned number of 64 bits, whose sign is a byte of its own.
    if (bytes > 9) {
        skip(bytes);
        return Value(Type::HUGE_INT, 0);
    }
    const char* digits = take(static_cast<std::size_t>(bytes));
    const bool is_negative = (digits[bytes - 1] & 0x80) != 0;
    if (bytes == 9 && digits[8] != 0) return Value(Type::HUGE_INT, 0);
    u64 number = is_negative ? ~u64{0} : 0;
    std::memcpy(&number, digits, static_cast<std::size_t>(std::min<u64>(bytes, 8)));
    return wide(static_cast<i64>(number), !is_negative);
}

PickleData::Value PickleData::read_text(u64 bytes) {
    const std::size_t kept = static_cast<std::size_t>(std::min<u64>(bytes, kMaxTextBytes));
    const Value value = intern(std::string_view(take(kept), kept));
    skip(bytes - kept);
    return value;
}

PickleData::Value PickleData::intern(std::string_view text) {
    std::size_t mask = text_places_.size() - 1;
    std::size_t place = place_of(text) & mask;
    for (; text_places_[place] != 0; place = (place + 1) & mask)
        if (this->text(text_places_[place] - 1) == text) return Value(Type::TEXT, text_places_[place] - 1);
    charge(text.size() + 2 * sizeof(u64) + 4 * sizeof(u32));
    if (text_ids_.size() == kMostCells) fail("it holds too many texts");
    text_.append(text);
    text_ends_.push_back(text_.size());
    text_ids_.push_back(text_id(text.data(), text.size()));
    text_places_[place] = static_cast<u32>(text_ids_.size());
    if (text_ids_.size() * 2 > text_places_.size()) {
        text_places_.assign(text_places_.size() * 2, 0);
        mask = text_places_.size() - 1;
        for (u32 number = 0; number < text_ids_.size(); ++number) {
            place = place_of(this->text(number)) & mask;
            while (text_places_[place] != 0) place = (place + 1) & mask;
            text_places_[place] = number + 1;
        }
    }
    return Value(Type::TEXT, text_ids_.size() - 1);
}

// Where a text is looked for first. The factor is not known to whoever makes a file: else it could choose texts that
// all want one place.
std::size_t PickleData::place_of(std::string_view text) const noexcept {
    u64 hash = text.size() * salt_;
    std::size_t at = 0;
    const auto add = [&](std::size_t bytes) {
        u64 word = 0;
        std::memcpy(&word, text.data() + at, bytes);
        hash = (hash ^ word) * salt_;
        hash ^= hash >> 32;
    };
    for (; at + 8 <= text.size(); at += 8) add(8);
    if (at < text.size()) add(text.size() - at);
    return static_cast<std::size_t>(hash ^ hash >> 29);
}

// What stands on the stack from there on, as one container.
PickleData::Value PickleData::contain(Type type, std::size_t from) {
    const std::size_t size = stack_.size() - from;
    if (type == Type::DICT && size % 2 != 0) fail("a key has no value");
    if (size >= kMostCells || containers_.size() >= kMostCells) fail("it holds too much");
    charge(sizeof(Container) + size * sizeof(Value));
    containers_.push_back(Container{cells_.size(), static_cast<u32>(size), static_cast<u32>(size)});
    cells_.insert(cells_.end(), stack_.begin() + static_cast<std::ptrdiff_t>(from), stack_.end());
    stack_.resize(from);
    return Value(type, containers_.size() - 1);
}

void PickleData::extend(Value container, std::size_t from, Type type) {
    if (container.type() != type)
        fail(type == Type::LIST ? "it appends to what is no list" : "it sets an item of what is no dict");
    const std::size_t more = stack_.size() - from;
    if (type == Type::DICT && more % 2 != 0) fail("a key has no value");
    Container& one = containers_[container.payload()];
    if (more >= kMostCells - one.size) fail("it holds too much");
    const u32 size = one.size + static_cast<u32>(more);
    if (one.capacity == 0) {  // nearly all of them are filled at once
        charge(size * sizeof(Value));
        one = Container{cells_.size(), size, size};
        cells_.insert(cells_.end(), stack_.begin() + static_cast<std::ptrdiff_t>(from), stack_.end());
        stack_.resize(from);
        return;
    }
    if (size > one.capacity) {
        const bool is_last = one.begin + one.capacity == cells_.size();
        const u32 capacity = std::max(size, one.size + one.size / 2);
        charge((is_last ? capacity - one.capacity : capacity) * sizeof(Value));
        if (is_last) {
            cells_.resize(one.begin + capacity);
        } else {
            const u64 begin = cells_.size();
            cells_.resize(begin + capacity);
            std::copy_n(cells_.begin() + static_cast<std::ptrdiff_t>(one.begin), one.size,
                        cells_.begin() + static_cast<std::ptrdiff_t>(begin));
            one.begin = begin;
        }
        one.capacity = capacity;
    }
    std::copy(stack_.begin() + static_cast<std::ptrdiff_t>(from), stack_.end(),
              cells_.begin() + static_cast<std::ptrdiff_t>(one.begin + one.size));
    one.size = size;
    stack_.resize(from);
}

}  // namespace memscope::kernel
