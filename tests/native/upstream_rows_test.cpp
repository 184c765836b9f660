// Rows of every kind with values of every sort: under the sanitizers, and with twelve cells each. What stands in the
// cells is tested from Python (tests/unit/test_upstream_rows.py).
#include "kernel/upstream_rows.h"

#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "check.h"
#include "kernel/row_ledger.h"

using namespace memscope;
using namespace memscope::kernel;

namespace {

constexpr std::size_t kRows = 2000;

// Owns the columns of both.
struct Batch {
#define X(type, name) std::vector<type> name;
    MEMSCOPE_ROW_COLUMNS(X)
#undef X
    std::vector<u64> raw_ts;
    std::vector<u16> home;
    RowColumns rows;
    LedgerColumns events;

    explicit Batch(std::mt19937_64& chance) {
        rows.n = events.n = kRows;
#define X(type, name)                                                                             \
    for (std::size_t row = 0; row < kRows; ++row) name.push_back(static_cast<type>(any(chance))); \
    rows.name = name.data();
        MEMSCOPE_ROW_COLUMNS(X)
#undef X
        for (std::size_t row = 0; row < kRows; ++row) {
            kind[row] = static_cast<u8>(kFirstEventKind + chance() % 32);
            raw_ts.push_back(any(chance));
            home.push_back(static_cast<u16>(chance() % 3));
        }
        events.kind = rows.kind;
        events.pool = rows.pool;
        events.device_type = rows.device_type;
        events.device = rows.device;
        events.ts = raw_ts.data();
        events.size = rows.size;
        events.used = rows.used;
        events.total = rows.total;
    }

    static u64 any(std::mt19937_64& chance) {
        switch (chance() % 4) {
            case 0:
                return chance() % 8;
            case 1:
                return ~u64{0} - chance() % 3;
            case 2:
                return u64{1} << chance() % 64;
            default:
                return chance();
        }
    }
};

// Texts of all lengths, quoted as a cell wants them.
std::string text_of(TextForm form, u64 id) {
    const std::string text(id % 5000, 'x');
    switch (form) {
        case TextForm::PAIRS:
        case TextForm::PATH:
            return id % 3 == 0 ? "" : ",key:" + text;
        case TextForm::VALUE:
        case TextForm::OWNER:
            return id % 3 == 0 ? "" : text;
        default:
            return "\"a,b\"\"" + text + "\n\"";
    }
}

// The number of cells of every record of RFC 4180; 0 for one in which a quote stands where none may.
std::vector<int> cells_of(std::string_view text) {
    std::vector<int> records;
    int cells = 1;
    bool quoted = false, is_first = true;
    for (const char c : text) {
        if (c == '"') {
            if (!quoted && !is_first) cells = -1000;
            quoted = !quoted;
            is_first = !quoted;  // a doubled one closes and opens again
            continue;
        }
        is_first = !quoted && (c == ',' || c == '\n');
        if (quoted) continue;
        cells += c == ',';
        if (c == '\n') {
            records.push_back(cells < 0 ? 0 : cells);
            cells = 1;
        }
    }
    return records;
}

CASE(every_row_has_twelve_cells) {
    std::mt19937_64 chance(7);
    Texts texts(text_of, 1 << 20);
    UpstreamRows rows(texts, {false, true, true, 4711});
    for (int round = 0; round < 5; ++round) {
        const Batch batch(chance);
        TextOut out;
        rows.csv(batch.rows, std::size_t{0}, kRows, "0", out);
        const std::vector<int> cells = cells_of(out.view());
        CHECK_EQUAL(cells.size(), kRows);
        for (const int count : cells) CHECK_EQUAL(count, 12);
    }
}

CASE(chosen_rows_are_those_of_the_whole) {
    std::mt19937_64 chance(8);
    const Batch batch(chance);
    Texts texts(text_of, 1 << 20);
    UpstreamRows rows(texts, {false, false, false, 1});
    TextOut all, chosen;
    const i64 numbers[] = {3, 4, 1999};
    for (const i64 number : numbers) rows.csv(batch.rows, static_cast<std::size_t>(number), 1, "cpu", all);
    rows.csv(batch.rows, numbers, 3, "cpu", chosen);
    CHECK(all.view() == chosen.view());
}

CASE(attr_of_a_database_is_an_object) {
    std::mt19937_64 chance(9);
    const Batch batch(chance);
    Texts texts([](TextForm, u64) { return std::string(); }, 1 << 20);
    UpstreamRows rows(texts, {true, true, true, 1});
    TextOut out;
    for (std::size_t row = 0; row < kRows; ++row) {
        out.clear();
        rows.cells(batch.rows, row, "0", out);
        const std::string_view attr = out.view();
        CHECK(attr.size() >= 2 && attr.front() == '{' && attr.back() == '}');
        CHECK(attr == "{}" || (attr[1] == '"' && attr[attr.size() - 2] == '"'));
    }
}

CASE(times_only_grow_and_sums_go_on) {
    std::mt19937_64 chance(10);
    RowLedger ledger(12345);
    i64 last = 0;
    for (int round = 0; round < 3; ++round) {
        Batch batch(chance);
        for (u64& ts : batch.raw_ts) ts = chance() % 1000;
        const Settled settled = ledger.settle(batch.events, batch.home.data());
        for (std::size_t row = 0; row < kRows; ++row) {
            CHECK(settled.ts[row] > last);
            last = settled.ts[row];
        }
        for (const u32 code : RowLedger::places(batch.events)) CHECK(code >> 24 == 0);
    }
}

}  // namespace

int main(int argc, char** argv) { return check::run(argc, argv); }
