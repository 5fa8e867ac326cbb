#include "host/progress/progress.h"

#include <string>

#include "support/catch.h"

namespace atelier::progress {
namespace {

// A file that can be read back, and a clock that is set by hand.
struct Screen {
  std::FILE* file = std::tmpfile();
  double time = 100.0;

  ~Screen() { std::fclose(file); }
  Options options(bool redraws, bool quiet = false) {
    return {.quiet = quiet, .out = file, .redraws = redraws, .now = [this] { return time; }};
  }
  std::string text() {
    std::string all(4096, '\0');
    std::fflush(file);
    std::rewind(file);
    all.resize(std::fread(all.data(), 1, all.size(), file));
    return all;
  }
};

TEST_CASE("A step on a terminal is one line, drawn again", "[progress]") {
  Screen screen;
  Progress progress(screen.options(/*redraws=*/true));
  Step step(progress, "denoise", 50, Unit::kSteps);
  screen.time += 10.32;
  step.advance(4);
  screen.time += 0.01;
  step.advance();  // too soon to be drawn
  screen.time += 118.67;
  step.set(50);
  step.finish();
  REQUIRE(screen.text() ==
          "\rdenoise: 0/50 0:00\033[K"
          "\rdenoise: 4/50 0:10<1:59 2.58 s/it\033[K"
          "\rdenoise: 50/50 2:09<0:00 2.58 s/it\033[K"
          "\rdenoise: 50 steps in 2:09, 2.58 s/it\033[K\n");
}

TEST_CASE("What is left out counts in the elapsed time, not in rate and time left", "[progress]") {
  Screen screen;
  Progress progress(screen.options(/*redraws=*/true));
  Step step(progress, "train", 10, Unit::kSteps);
  screen.time += 8;
  step.advance(4);
  screen.time += 60;
  step.leave_out(60);
  screen.time += 2;
  step.advance();
  screen.time += 10;
  step.set(10);
  step.finish();
  REQUIRE(screen.text() ==
          "\rtrain: 0/10 0:00\033[K"
          "\rtrain: 4/10 0:08<0:12 2.00 s/it\033[K"
          "\rtrain: 5/10 1:10<0:10 2.00 s/it\033[K"
          "\rtrain: 10/10 1:20<0:00 2.00 s/it\033[K"
          "\rtrain: 10 steps in 1:20, 2.00 s/it\033[K\n");
}

TEST_CASE("Loads tell bytes and their rate", "[progress]") {
  Screen screen;
  Progress progress(screen.options(/*redraws=*/true));
  Step step(progress, "load dit", 0, Unit::kBytes);
  screen.time += 2;
  step.set(4'200'000'000, 15'450'000'000);
  screen.time += 5;
  step.set(15'450'000'000, 15'450'000'000);
  step.finish();
  REQUIRE_THAT(screen.text(), Catch::Contains("load dit: 4.20/15.45 GB 2.10 GB/s 0:02<0:06"));
  REQUIRE_THAT(screen.text(), Catch::EndsWith("load dit: 15.45 GB in 7.0 s, 2.21 GB/s\033[K\n"));
}

TEST_CASE("Small files are told in megabytes, and parts have no rate", "[progress]") {
  Screen screen;
  Progress progress(screen.options(/*redraws=*/true));
  Step load(progress, "load vae", 2'500'000, Unit::kBytes);
  load.set(2'500'000);
  screen.time += 0.5;
  load.finish();
  Step tiles(progress, "decode", 4, Unit::kParts);
  screen.time += 1;
  tiles.advance();
  tiles.finish();
  REQUIRE(screen.text() ==
          "\rload vae: 0.00/2.50 MB 0:00\033[K"
          "\rload vae: 2.50 MB in 0.5 s, 0.01 GB/s\033[K\n"
          "\rdecode: 0/4 0:00\033[K"
          "\rdecode: 1/4 0:01<0:03\033[K"
          "\rdecode: 1.0 s\033[K\n");
}

TEST_CASE("Where nothing can be drawn again, lines are sparse", "[progress]") {
  Screen screen;
  Progress progress(screen.options(/*redraws=*/false));
  Step step(progress, "denoise", 100, Unit::kSteps);
  for (int i = 0; i < 100; ++i) {
    screen.time += 0.125;
    step.advance();
  }
  step.finish();
  REQUIRE(screen.text() ==
          "denoise: 40/100 0:05<0:08 8.00 it/s\n"
          "denoise: 80/100 0:10<0:03 8.00 it/s\n"
          "denoise: 100 steps in 12.5 s, 8.00 it/s\n");
}

TEST_CASE("Quiet keeps warnings only", "[progress]") {
  Screen screen;
  Progress progress(screen.options(/*redraws=*/true, /*quiet=*/true));
  Step step(progress, "decode", 0, Unit::kParts);
  progress.note("note");
  progress.warn("warning");
  step.finish();
  REQUIRE(screen.text() == "warning\n");
}

TEST_CASE("Notes and steps left unfinished do not leave half a line", "[progress]") {
  Screen screen;
  Progress progress(screen.options(/*redraws=*/true));
  {
    Step step(progress, "decode", 0, Unit::kParts);
    progress.note("note");
    screen.time += 1;
    step.advance(0);
  }
  REQUIRE(screen.text() == "\rdecode: 0:00\033[K\r\033[Knote\n\rdecode: 0:01\033[K\r\033[K");
}

}  // namespace
}  // namespace atelier::progress
