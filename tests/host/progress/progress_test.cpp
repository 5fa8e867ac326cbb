#include "host/progress/progress.h"

#include <string>

#include "support/catch.h"

namespace atelier::progress {
namespace {

// A file that can be read back, and a clock that is set by hand.
struct Screen {
  std::FILE* file = std::tmpfile();
  double time = 100.0;
  int columns = 0;

  ~Screen() { std::fclose(file); }
  Options options(bool redraws, bool quiet = false) {
    return {.quiet = quiet,
            .out = file,
            .redraws = redraws,
            .columns = [this] { return columns; },
            .now = [this] { return time; }};
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
          "\r\033[Kdenoise: 50 steps in 2:09, 2.58 s/it\n");
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
          "\r\033[Ktrain: 10 steps in 1:20, 2.00 s/it\n");
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
  REQUIRE_THAT(screen.text(), Catch::EndsWith("\r\033[Kload dit: 15.45 GB in 7.0 s, 2.21 GB/s\n"));
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
          "\r\033[Kload vae: 2.50 MB in 0.5 s, 0.01 GB/s\n"
          "\rdecode: 0/4 0:00\033[K"
          "\rdecode: 1/4 0:01<0:03\033[K"
          "\r\033[Kdecode: 1.0 s\n");
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

TEST_CASE("A line that is drawn again fits its terminal, whatever width that has now",
          "[progress]") {
  Screen screen;
  screen.columns = 80;
  Progress progress(screen.options(/*redraws=*/true));
  Step step(progress, "train", 200, Unit::kSteps);
  screen.time += 656;
  step.set_note("loss 0.1809 lr 2.19e-06 norm 0.0582 mem 0.2 GB wait 0%");
  step.set(197);
  screen.columns = 40;
  screen.time += 1;
  step.set(198);
  screen.time += 1;
  step.set_note("中中中中中中");
  step.set(199);
  step.finish();
  REQUIRE(screen.text() ==
          "\rtrain: 0/200 0:00\033[K"
          "\rtrain: 197/200 10:56<0:10 3.33 s/it loss 0.1809 lr 2.19e-06 norm 0.0582 mem 0.…\033[K"
          "\rtrain: 198/200 10:57<0:07 3.32 s/it lo…\033[K"
          "\rtrain: 199/200 10:58<0:04 3.31 s/it 中…\033[K"
          "\r\033[Ktrain: 199 steps in 10:58, 3.31 s/it\n");
}

TEST_CASE("Names in a line do not steer the terminal", "[progress]") {
  Screen screen;
  Progress progress(screen.options(/*redraws=*/true));
  progress.note("\033[2Ja.png: \"b\\c\"\tÄ 中");
  progress.warn("two\nlines, \r\xff and \xc2\x9b");
  Step(progress, "load \033]0;owned\a", 0, Unit::kParts).finish();
  REQUIRE(screen.text() ==
          "\\x1b[2Ja.png: \"b\\c\"\tÄ 中\n"
          "two\nlines, \\r\\xff and \\u009b\n"
          "\rload \\x1b]0;owned\\x07: 0:00\033[K"
          "\r\033[Kload \\x1b]0;owned\\x07: 0.0 s\n");
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
