#include "host/train/row_check.h"

#include "image_toy.h"
#include "support/models.h"

namespace atelier::train {
namespace {

using order::Stage;
using order::Task;
using order::Training;

using test::Folder;
using test::image_toy;

// Rows of one image; `style` stands before the prompt, and 512 tokens are encoded.
class Rows {
 public:
  Rows() {
    test::write_toy_model(folder_ / "model");
    model_ = test::open_toy_model(folder_ / "model");
    test::write_toy_image(folder_ / "a.png", 16, 16, 1);
    config_.dataset.dataset_base_path = folder_.path();
    config_.dataset.dataset_metadata_path = folder_ / "a.csv";
    config_.dataset.extra_inputs = {"style"};
  }

  Training& config() { return config_; }

  void add(size_t style, size_t prompt) {
    table_ += "a.png," + std::string(style, 's') + "," + std::string(prompt, 'p') + "\n";
  }

  // What is wrong, all in one text; `note` gets that of the lengths.
  std::string check(bool cuts = false, bool is_trained_on = true) {
    test::write_bytes(folder_ / "a.csv", table_);
    generate::TextLengths lengths(model_->model(), cuts);
    report::Problems problems;
    const auto dataset = data::Dataset::open(
        config_.dataset, image_toy().inputs(), model_->model().latent_spec(), problems,
        row_check(config_, model_->family(), model_->stages().encoding, lengths, is_trained_on));
    items = dataset.items().size();
    note = lengths.note();
    return test::message_of([&] { problems.throw_if_any(); });
  }

  size_t items = 0;
  std::string note;

 private:
  Folder folder_;
  std::unique_ptr<model::LoadedModel> model_;
  Training config_;
  std::string table_ = "image,style,prompt\n";
};

TEST_CASE("Rows whose texts are too long are told, all of their texts counted", "[rows]") {
  Rows rows;
  rows.add(1, 511);
  rows.add(1, 512);
  rows.add(500, 13);
  const std::string told = rows.check();
  CHECK_THAT(told, Catch::Contains("2 mistakes"));
  CHECK_THAT(told, Catch::Contains("a.csv:3 [prompt]: 513 tokens, at most 512 are encoded; shorten "
                                   "it, or pass --truncate_captions to cut it"));
  CHECK_THAT(told, Catch::Contains("a.csv:4 [prompt]: 513 tokens"));
  CHECK(rows.items == 1);
  CHECK(rows.note.empty());

  CHECK(rows.check(/*cuts=*/true).empty());
  CHECK(rows.items == 3);
  CHECK(rows.note == "2 texts have more than 512 tokens and are cut there; the longest has 513");
}

TEST_CASE("What is left of a row without its caption is counted where captions are dropped",
          "[rows]") {
  Rows rows;
  rows.add(513, 1);
  CHECK_THAT(rows.check(), !Catch::Contains("--caption_dropout_rate"));
  rows.config().caption_dropout_rate = 0.1;
  CHECK_THAT(rows.check(), Catch::Contains("a.csv:2 [prompt]: 514 tokens") &&
                               Catch::Contains("a.csv:2 [prompt]: without its caption "
                                               "(--caption_dropout_rate): 513 tokens"));
}

TEST_CASE("Texts that come from the cache are not counted", "[rows]") {
  Rows rows;
  rows.add(1, 600);
  rows.config().stage = Stage::kTrain;
  CHECK(rows.check().empty());
  rows.config().trainable_models = {"text_encoder"};  // encodes in each step
  CHECK_THAT(rows.check(), Catch::Contains("601 tokens"));
}

TEST_CASE("Columns of distillation are needed where it learns", "[rows]") {
  Rows rows;
  rows.add(1, 1);
  rows.config().task = Task::kDirectDistill;
  CHECK_THAT(rows.check(), Catch::Contains("a.csv:2: column seed: an integer from 0 is needed"));
  CHECK(rows.check(/*cuts=*/false, /*is_trained_on=*/false).empty());
}

TEST_CASE("What keeps all texts from being counted is told once", "[rows]") {
  const std::unique_ptr<Model> without_tokenizer = image_toy().make_model({}, {});
  generate::TextLengths lengths(*without_tokenizer, /*cuts=*/false);
  int told = 0;
  for (int i = 0; i < 20; ++i) {
    if (const auto error = lengths.check(test::prompt_inputs("x"), "a.csv:2 [prompt]")) {
      CHECK_THAT(error->what(), Catch::Contains("there is no tokenizer"));
      ++told;
    }
  }
  CHECK(told == 1);
}

}  // namespace
}  // namespace atelier::train
