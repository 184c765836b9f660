// Which boundaries count: programs of a known number of iterations, as the letters of who steps, and the number of
// steps that are to be seen. A letter is an optimizer; `!` is msmemscope.step(), `|` an mstx range `step start`. `.` is
// the work of an iteration: without it two boundaries are one and the same place.
#include "hook/steps.h"

#include <cstdio>
#include <string>
#include <vector>

#include "check.h"

using namespace memscope;

namespace {

std::string repeated(const std::string& text, int times) {
    std::string all;
    for (int i = 0; i < times; ++i) all += text;
    return all;
}

StepSource source_of(char who) {
    return who == '!' ? StepSource::API : who == '|' ? StepSource::MSTX : StepSource::OPTIMIZER;
}

// The numbers of the steps that began, in order. Work is 1000 bytes, a boundary of its own 96.
std::vector<u32> numbers_of(const std::string& program) {
    static StepCounter counter;  // as in the library: too large for a stack
    counter = {};
    std::vector<u32> numbers;
    u64 place = 96;
    for (const char who : program) {
        if (who == '.') {
            place += 1000;
            continue;
        }
        place += 16;  // something small always happens between an optimizer's step and msmemscope.step()
        const u32 number = counter.boundary(source_of(who), static_cast<u64>(who), place);
        if (number == 0) continue;
        place += 96;
        counter.begins_at(place);
        if (!numbers.empty() && number == numbers.back()) continue;     // told once more, by one who is trusted more
        if (!numbers.empty()) CHECK_EQUAL(number, numbers.back() + 1);  // by one, and never backwards
        numbers.push_back(number);
    }
    return numbers;
}

std::string layers(int count) {
    std::string all;
    for (int i = 0; i < count; ++i) all += static_cast<char>('A' + i);
    return all;
}

}  // namespace

CASE(every_pattern_has_its_steps) {
    const struct {
        const char* what;
        std::string program;
        std::size_t steps;
    } patterns[] = {
        {"one optimizer", repeated(".A", 80), 80},
        {"an optimizer made anew each iteration on the same parameters", repeated(".A", 80), 80},
        {"gradients of four batches", repeated("....A", 20), 20},
        {"two-stage training", repeated(".A", 10) + repeated(".B", 70), 80},
        {"five folds",
         repeated(".A", 16) + repeated(".B", 16) + repeated(".C", 16) + repeated(".D", 16) + repeated(".E", 16), 80},
        {"folds of three iterations", ".A.A.A.B.B.B.C.C.C.D.D.D", 12},
        {"a fold in the place of an earlier one", repeated(".A", 5) + repeated(".B", 5) + repeated(".A", 5), 15},
        {"two models in turns of an epoch", repeated(repeated(".A", 10) + repeated(".B", 10), 4), 80},
        {"GAN", repeated(".A.B", 40), 40},
        {"GAN, five steps of the critic after the generator's", repeated(".A.B.B.B.B.B", 40), 40},
        {"GAN, changing ratios", repeated(".A.B", 20) + repeated(".A.B.B", 20) + repeated(".A.B.B.B.B.B", 20), 60},
        {"GAN, ratios by turns", repeated(".A.B.B.B.A.B", 20), 40},
        {"GAN, three optimizers", repeated(".A.B.C", 40), 40},
        {"GAN after one optimizer", repeated(".A", 20) + repeated(".B.C", 40), 60},
        // Who steps most and first is the iteration; nobody can know at the start that a slower one will come.
        {"GAN, the critic first", repeated(".A.A.A.A.A.B", 8), 40 + 1},
        // Two boundaries for one iteration where the second optimizer appears, and that is all.
        {"GAN whose critic joins later", repeated(".A", 10) + repeated(".A.B", 30), 40 + 1},
        {"an auxiliary optimizer now and then", repeated(repeated(".A", 20) + "B", 4), 80 + 1},
        {"an optimizer per layer", repeated("." + layers(26), 40), 40},
        {"an optimizer per layer, the first of them frozen later",
         repeated("." + layers(26), 20) + repeated("." + layers(26).substr(1), 60), 80 - 7},
        {"a GAN gives way to one optimizer", repeated(".A.B", 20) + repeated(".B", 60), 80 - 7},
        {"step() after the optimizer's", repeated(".A!", 80), 80},
        {"step() before the work", repeated("!.A", 80), 80},
        {"step() for every tenth iteration", repeated(repeated(".A", 10) + "!", 8), 10 + 7},
        {"step() from iteration 100 on", repeated(".A", 100) + repeated(".A!", 100), 200},
        {"step() in an evaluation after training", repeated(".A", 100) + repeated(".!", 100), 200},
        {"step() in the first stage only", repeated(".A!", 20) + repeated(".A", 80), 100 - 36},
        {"step() without an optimizer, then an optimizer", repeated(".!", 20) + repeated(".A", 80), 100},
        {"mstx", repeated("|.", 80), 80},
        {"mstx around an optimizer", repeated("|.A", 80), 80},
        {"mstx around step()", repeated("|.!", 80), 80 + 1},
        // The first range begins where the optimizer ended the iteration before it; nothing ends the last one.
        {"mstx from iteration 100 on", repeated(".A", 100) + repeated("|.A", 100), 200 - 1},
        {"mstx, and step() from later on", repeated("|.A", 50) + repeated("|.A!", 50), 100 + 1},
    };
    for (const auto& pattern : patterns) {
        const std::size_t seen = numbers_of(pattern.program).size();
        if (seen != pattern.steps) fprintf(stderr, "%s: %zu steps, expected %zu\n", pattern.what, seen, pattern.steps);
    }
    for (const auto& pattern : patterns) CHECK_EQUAL(numbers_of(pattern.program).size(), pattern.steps);
}

CASE(an_iteration_has_the_same_number_with_every_source) {
    // Ends: the first boundary ends step 1. Beginnings: the first begins step 1.
    CHECK_EQUAL(numbers_of(".!").back(), 2u);
    CHECK_EQUAL(numbers_of(".A").back(), 2u);
    CHECK_EQUAL(numbers_of("|.").back(), 1u);
    CHECK_EQUAL(numbers_of(".A!.A!.A!").back(), 4u);
    CHECK_EQUAL(numbers_of("|.|.|.").back(), 3u);
    CHECK_EQUAL(numbers_of("|.!|.!|.!").back(), 4u);  // step 3 has ended
}

CASE(a_more_trusted_source_goes_on_from_the_number_reached) {
    const std::string before = repeated(".A", 100);
    CHECK_EQUAL(numbers_of(before).back(), 101u);
    CHECK_EQUAL(numbers_of(before + ".A!").back(), 102u);     // both end iteration 101
    CHECK_EQUAL(numbers_of(before + ".A!.A!").back(), 103u);  // and both iteration 102
    CHECK_EQUAL(numbers_of(before + ".!").back(), 102u);      // an iteration of its own
}

CASE(who_followed_another_process_goes_on_from_its_number) {
    static StepCounter counter;
    counter = {};
    counter.go_on_from(21);
    CHECK_EQUAL(counter.boundary(StepSource::OPTIMIZER, 1, 1000), 22u);
    counter.go_on_from(5);  // never backwards
    CHECK_EQUAL(counter.boundary(StepSource::OPTIMIZER, 1, 2000), 23u);
}

CASE(more_optimizers_than_have_room) {
    static StepCounter counter;
    counter = {};
    u32 steps = 0;
    for (u64 iteration = 0; iteration < 10; ++iteration)
        for (u64 optimizer = 1; optimizer <= 5000; ++optimizer)
            steps += counter.boundary(StepSource::OPTIMIZER, optimizer, iteration * 1000) != 0;
    CHECK_EQUAL(steps, 10u);
}

int main(int argc, char** argv) { return check::run(argc, argv); }
