// Kernels that are wrong, slow, crash or hang are found, and what was found is remembered.
#include <chrono>
#include <csignal>
#include <set>
#include <thread>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "host/tune/tuning.h"
#include "support/catch.h"
#include "support/files.h"
#include "support/traced_graphs.h"

namespace atelier::tune {
namespace {

using at::Tensor;

bool is_fused() {
  return ops::kernels() == ops::Kernels::kFused;
}

// 2 x, by what stands for a kernel where fused kernels run.
std::vector<Operator> doubled(const Sizes& sizes, const Noise& noise,
                              Tensor (*kernel)(const Tensor& x)) {
  return {{"doubled", {noise({sizes.samples[0], sizes.width})}, [kernel](const Tensors& in) {
             return Traced{{is_fused() ? kernel(in[0]) : 2 * in[0]}, in};
           }}};
}

template <Tensor (*kKernel)(const Tensor&)>
Verdict judged() {
  const KernelProof proof = {"doubled", [](const Sizes& sizes, const Noise& noise) {
                               return doubled(sizes, noise, kKernel);
                             }};
  return prove(proof, small_sizes(), small_sizes().first(1), at::kCPU);
}

Tensor right(const Tensor& x) {
  return x + x;
}
Tensor wrong_value(const Tensor& x) {
  Tensor y = x + x;
  const at::NoGradGuard no_grad;
  y.view(-1)[3] += 0.05 * y.abs().max();
  return y;
}
Tensor wrong_gradient(const Tensor& x) {
  return 2 * x.detach() + 1.9 * (x - x.detach());
}
Tensor not_a_number(const Tensor& x) {
  return (x + x) * NAN;
}
Tensor drifting(const Tensor& x) {
  static int calls = 0;
  return (x + x) * (1 + 1e-6 * ++calls);
}
Tensor absent(const Tensor&) {
  throw Error(ErrorCode::kUnsupported, "this device has none");
}
Tensor slow(const Tensor& x) {
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  return x + x;
}

Verdict right_verdict(std::string op, double composed_ms = 2, double fused_ms = 1) {
  return {.op = std::move(op), .problem = {}, .composed_ms = composed_ms, .fused_ms = fused_ms};
}

using OnLine = std::function<void(const std::string&)>;

const std::vector<std::string> kOps = {"a", "b", "c", "d"};

const GpuKind kKind = {.name = "GPU one",
                       .capability = 90,
                       .driver = "580.1",
                       .libtorch = "2.11.0",
                       .kernels = "1 byte"};

}  // namespace

TEST_CASE("Every operator with kernels of our own is proven once, and right on the CPU", "[tune]") {
  std::set<std::string_view> names;
  for (const KernelProof& proof : kernel_proofs()) {
    INFO(proof.op);
    CHECK(names.insert(proof.op).second);
    const Verdict verdict = prove(proof, small_sizes(), small_sizes().first(1), at::kCPU);
    CHECK(verdict.problem == "");
    CHECK(verdict.composed_ms > 0);
    CHECK(verdict.fused_ms > 0);
  }
  CHECK(names.size() == 15);
  CHECK(ops::kernels() == ops::Kernels::kAuto);  // as it was
}

TEST_CASE("A kernel that is wrong, drifts or is slow is not used", "[tune]") {
  CHECK(judged<right>().problem == "");
  CHECK_THAT(judged<wrong_value>().problem, Catch::Contains("doubled in Float: values differ by"));
  CHECK_THAT(judged<wrong_gradient>().problem, Catch::Contains("gradients differ by"));
  CHECK_THAT(judged<not_a_number>().problem, Catch::Contains("values differ by inf"));
  CHECK_THAT(judged<drifting>().problem, Catch::Contains("not the same bits twice"));
  CHECK(judged<absent>().problem == "this device has none");
  CHECK(ops::kernels() == ops::Kernels::kAuto);  // as it was
  const Verdict late = judged<slow>();
  CHECK(late.problem == "");
  CHECK(late.fused_ms > 2);
  CHECK_FALSE(late.is_on());
  CHECK_FALSE(judged<wrong_value>().is_on());
  CHECK(right_verdict("a", 1.0, 0.97).is_on());
  CHECK_FALSE(right_verdict("a", 1.0, 0.98).is_on());
}

TEST_CASE("Blocks as graphs are proven to the bit, beside blocks that are launched", "[tune]") {
  static test::TracedRecorder::Counts counts;
  CHECK(proofs_for(at::kCPU).size() == kernel_proofs().size());
  ops::register_graph_recorder(at::kCPU, [](at::Device) -> std::unique_ptr<ops::GraphRecorder> {
    return std::make_unique<test::TracedRecorder>(counts);
  });
  CHECK(proofs_for(at::kCPU).size() == kernel_proofs().size() + graph_proofs().size());
  const KernelProof& proof = graph_proofs().front().proof;
  CHECK(proof.timed_at().front().samples == std::vector<int64_t>{256});
  const Verdict verdict = prove(proof, small_sizes().first(2), small_sizes().first(1), at::kCPU);
  CHECK(verdict.problem == "");
  CHECK(verdict.fused_ms > 0);
  CHECK(counts.recorded > 0);
  CHECK(counts.replayed > counts.recorded);
  CHECK(counts.live == 0);

  ops::register_graph_recorder(at::kCPU, [](at::Device) -> std::unique_ptr<ops::GraphRecorder> {
    return std::make_unique<test::TracedRecorder>(counts, [] { throw std::runtime_error("no"); });
  });
  CHECK_THAT(prove(proof, small_sizes().first(1), small_sizes().first(1), at::kCPU).problem,
             Catch::Contains("blocks run without CUDA graphs from now on: no"));
  ops::register_graph_recorder(at::kCPU, nullptr);
}

TEST_CASE("As many rows are graphs as all proofs of fewer rows were on for", "[tune]") {
  CHECK(graph_rows_of({"swiglu", "cuda_graphs_256"}) == 256);
  CHECK(graph_rows_of({"cuda_graphs_1280", "cuda_graphs_256"}) == 1280);
  CHECK(graph_rows_of({"cuda_graphs_1280", "cuda_graphs_4352"}) == 0);
  CHECK(graph_rows_of({}) == 0);
}

TEST_CASE("Products of 8 bits and copies are measured, and choose nothing", "[tune]") {
  std::vector<std::string> names;
  for (const KernelProof& proof : rate_proofs()) {
    INFO(proof.op);
    names.emplace_back(proof.op);
    const Verdict verdict = prove(proof, small_sizes(), small_sizes().first(1), at::kCPU);
    CHECK(verdict.problem == "");
    CHECK(verdict.composed_ms > 0);
    CHECK(verdict.fused_ms > 0);
  }
  CHECK(names == std::vector<std::string>{"w8a8_fp8", "w8a8_int8", "pinned_copies"});
  const Sizes& copied = rate_proofs().back().timed_at().front();
  CHECK(copied_bytes() == 2 * 2 * copied.samples[0] * copied.width);

  const KernelTable table = {{right_verdict("a"),
                              right_verdict("w8a8_fp8", 1.5, 1.25),
                              right_verdict("w8a8_int8", 1.5, 2),
                              {.op = "pinned_copies", .problem = "it cannot pin"}}};
  CHECK(table.on() == std::vector<std::string>{"a"});
  CHECK(table.choices() == 1);
  CHECK(together({table}).wrong.empty());
  CHECK(table.missing(names).empty());
  CHECK(summary_of(table) == "a; measured: w8a8_fp8 120 %, w8a8_int8 75 %");
  CHECK(slow_products(table, kFp8Products) == "");
  CHECK(slow_products(table, kInt8Products) == "w8a8_int8: 2 ms beside 1.5 ms in bfloat16");
  CHECK(slow_products({{right_verdict("a")}}, kInt8Products) == "");
  CHECK(copy_bytes_per_second(at::kCPU) == 0);
}

TEST_CASE("Each run bears its part of the plan that the first one makes", "[tune]") {
  static bool is_planned = false;
  const auto timed = [](int64_t runs_a_plan) {
    is_planned = false;
    static int64_t runs = 0;
    runs = runs_a_plan;
    const KernelProof proof = {"planned", [](const Sizes& sizes, const Noise& noise) {
                                 std::vector<Operator> all = doubled(
                                     sizes, noise, +[](const Tensor& x) {
                                       if (!std::exchange(is_planned, true))
                                         std::this_thread::sleep_for(std::chrono::milliseconds(60));
                                       return x + x;
                                     });
                                 all[0].runs_a_plan = runs;
                                 return all;
                               }};
    return prove(proof, {}, small_sizes().first(1), at::kCPU).fused_ms;
  };
  CHECK(timed(10) >= 5.9);
  CHECK(timed(0) < 5.9);
}

TEST_CASE("The case and the sizes that gain least decide", "[tune]") {
  const KernelProof proof = {"doubled", [](const Sizes& sizes, const Noise& noise) {
                               const bool is_slow = sizes.width == small_sizes()[1].width;
                               return doubled(sizes, noise, is_slow ? slow : right);
                             }};
  CHECK(prove(proof, {}, small_sizes().first(2), at::kCPU).fused_ms > 2);
}

TEST_CASE("A process that crashes, hangs or ends costs the operator it had begun", "[tune]") {
  std::vector<std::vector<std::string>> asked;
  // The first process crashes in b, the second hangs in c, the third ends before it begins d.
  const auto prove = [&](std::span<const std::string> ops, const OnLine& on_line) -> End {
    asked.emplace_back(ops.begin(), ops.end());
    on_line("a line of LibTorch");
    if (ops.front() == "d") return {.status = 3 << 8};
    for (const std::string& op : ops) {
      on_line(begin_line(op));
      if (op == "b") return {.status = SIGSEGV};
      if (op == "c") return {.status = {}, .stopped_after_s = 60};
      on_line(verdict_line(right_verdict(op)));
    }
    return {.status = 0};
  };
  std::vector<std::string> told;
  const KernelTable table =
      tune(kOps, prove, [&](const Verdict& verdict) { told.push_back(verdict.op); });
  CHECK(asked == std::vector<std::vector<std::string>>{kOps, {"c", "d"}, {"d"}});
  CHECK(told == kOps);
  CHECK(table.on() == std::vector<std::string>{"a"});
  CHECK_THAT(table.verdicts[1].problem, Catch::Contains("ended by signal: Segmentation fault"));
  CHECK(table.verdicts[2].problem == "stopped after 60 seconds");
  CHECK(table.verdicts[3].problem == "the process ended with exit code 3");
}

TEST_CASE("Kernels run by default where they do on every kind of GPU", "[tune]") {
  const KernelTable one = {{right_verdict("a"), right_verdict("b"), right_verdict("c")}};
  const KernelTable other = {
      {right_verdict("b", 1, 1), {.op = "c", .problem = "wrong"}, right_verdict("a")}};
  CHECK(together({one}).on == std::vector<std::string>{"a", "b", "c"});
  CHECK(together({one}).wrong.empty());
  for (const Proven& both : {together({one, other}), together({other, one})}) {
    CHECK(both.on == std::vector<std::string>{"a"});
    CHECK(both.wrong == std::vector<std::string>{"c"});
  }
  CHECK(one.missing({"d", "a", "e"}) == std::vector<std::string>{"d", "e"});
}

TEST_CASE("Processes choose as the first one, but for what is wrong with one of them", "[tune]") {
  using Names = std::vector<std::string>;
  const auto said = [](const std::optional<Names>& named, const Names& wrong = {}) {
    return choice_text(named, wrong);
  };
  CHECK(agreed_choice({said(Names{"b", "a"}), said(Names{"c"}), said({})}) == Names{"b", "a"});
  CHECK(agreed_choice({said(Names{"b", "a"}), said(Names{"a"}, {"c", "b"})}) == Names{"a"});
  CHECK(agreed_choice({said(Names{"b"}, {"b"}), said(Names{"a"})}) == Names{});
  CHECK_FALSE(agreed_choice({said({}), said(Names{"a"})}).has_value());
}

TEST_CASE("What cannot be proven is no verdict, and is asked again", "[tune]") {
  const Verdict full = {.op = "b", .problem = "CUDA out of memory", .is_unknown = true};
  const auto prove = [&](std::span<const std::string> ops, const OnLine& on_line) -> End {
    for (const std::string& op : ops) {
      on_line(begin_line(op));
      on_line(verdict_line(op == "b" ? full : right_verdict(op)));
    }
    return {.status = 0};
  };
  std::vector<bool> unknown;
  const KernelTable table =
      tune(kOps, prove, [&](const Verdict& verdict) { unknown.push_back(verdict.is_unknown); });
  CHECK(unknown == std::vector<bool>{false, true, false, false});
  CHECK(table.on() == std::vector<std::string>{"a", "c", "d"});
  CHECK(table.missing(kOps) == std::vector<std::string>{"b"});
}

TEST_CASE("Proofs that time is over for are made another time", "[tune]") {
  int processes = 0;
  const auto prove = [&](std::span<const std::string>, const OnLine& on_line) -> End {
    ++processes;
    on_line(begin_line("a"));
    on_line(verdict_line(right_verdict("a")));
    on_line(begin_line("b"));
    return {.status = {}, .is_time_over = true};
  };
  const KernelTable table = tune(kOps, prove, [](const Verdict&) {});
  CHECK(processes == 1);
  CHECK(table.on() == std::vector<std::string>{"a"});
  CHECK(table.missing(kOps) == std::vector<std::string>{"b", "c", "d"});
}

TEST_CASE("A process that ends behind a verdict costs nobody", "[tune]") {
  int processes = 0;
  const auto prove = [&](std::span<const std::string> ops, const OnLine& on_line) -> End {
    ++processes;
    on_line(begin_line(ops.front()));
    on_line(verdict_line(right_verdict(ops.front())));
    return {.status = 0};
  };
  CHECK(tune(kOps, prove, [](const Verdict&) {}).on() == kOps);
  CHECK(processes == 4);
}

TEST_CASE("A table is remembered for just this kind of GPU", "[tune]") {
  const test::Folder folder;
  const std::string below = folder / "cache/atelier";
  CHECK_FALSE(read_table(below, kKind).has_value());
  CHECK_FALSE(read_table("", kKind).has_value());
  const KernelTable table = {
      {right_verdict("a", 0.125, 0.0625), {.op = "b", .problem = "values\ndiffer"}}};
  make_writable(below, kKind);
  CHECK(std::filesystem::is_empty(below));
  write_table(below, kKind, table);
  const auto read = read_table(below, kKind);
  REQUIRE(read.has_value());
  REQUIRE(read->verdicts.size() == 2);
  CHECK(read->verdicts[0].fused_ms == 0.0625);
  CHECK(read->verdicts[1].problem == "values\ndiffer");
  CHECK(summary_of(*read) == "a; not in use: b (values\ndiffer)");
  CHECK(summary_of({{right_verdict("c", 1, 1)}}) == "none; not in use: c (no faster)");

  for (const auto& change : std::vector<void (*)(GpuKind&)>{
           [](GpuKind& k) { k.name = "GPU two"; }, [](GpuKind& k) { k.capability = 100; },
           [](GpuKind& k) { k.driver = "580.2"; }, [](GpuKind& k) { k.libtorch = "2.12.0"; },
           [](GpuKind& k) { k.kernels = "2 bytes"; }}) {
    GpuKind other = kKind;
    change(other);
    CHECK_FALSE(read_table(below, other).has_value());
    CHECK_FALSE(read_tables(below, {kKind, other}).has_value());
    // Nor where a file has its name.
    test::write_bytes(table_path(below, other), test::read_bytes(table_path(below, kKind)));
    CHECK_FALSE(read_table(below, other).has_value());
  }
}

TEST_CASE("cuDNN attends where it was proven", "[tune]") {
  CHECK(proofs_for(at::kCPU).size() == kernel_proofs().size());
  const auto proofs = attention_proofs();
  REQUIRE(proofs.size() == 4);
  std::vector<std::string> names;
  for (const AttentionProof& each : proofs) {
    if (each.head_dim == 128) names.emplace_back(each.proof.op);
  }
  const auto proven = attention_of(names);
  REQUIRE(proven.size() == 2);
  const auto kernel = [&](int capability, int64_t head_dim, bool is_uniform) {
    return ops::attention_kernel({.capability = capability,
                                  .dtype = at::kBFloat16,
                                  .head_dim = head_dim,
                                  .is_uniform = is_uniform},
                                 proven);
  };
  CHECK((kernel(90, 128, true) == ops::AttentionKernel::kCudnn));
  CHECK((kernel(90, 128, false) == ops::AttentionKernel::kCudnn));
  CHECK((kernel(100, 128, true) == ops::AttentionKernel::kCudnn));
  CHECK((kernel(90, 96, true) == ops::AttentionKernel::kVarlenFlash));
  CHECK(attention_of({"norm_rope"}).empty());
}

TEST_CASE("A table that could not be remembered is told before anything is proven", "[tune]") {
  const test::Folder folder;
  REQUIRE_THROWS_WITH(make_writable("", kKind), Catch::Contains("set HOME or XDG_CACHE_HOME"));
  test::write_bytes(folder / "file", "");
  REQUIRE_THROWS_WITH(make_writable(folder / "file", kKind), Catch::Contains("file/kernels-"));
}

TEST_CASE("A table that is damaged is none, and is made anew", "[tune]") {
  const test::Folder folder;
  const std::string below = folder.path();
  write_table(below, kKind, {{right_verdict("a")}});
  const std::string path = table_path(below, kKind);
  const std::string whole = test::read_bytes(path);
  for (const std::string& text :
       {std::string(), whole.substr(0, whole.size() / 2), std::string("[]"),
        std::string(R"({"of": 3})"), whole.substr(0, whole.find("\"operators\"")) + "\"x\": 1}",
        std::string(whole).replace(whole.find("\"op\""), 4, "\"oq\"")}) {
    test::write_bytes(path, text);
    INFO(text);
    CHECK_FALSE(read_table(below, kKind).has_value());
  }
  write_table(below, kKind, {{right_verdict("a")}});
  CHECK(read_table(below, kKind).has_value());
  CHECK(read_tables(below, {kKind})->size() == 1);
}

}  // namespace atelier::tune
