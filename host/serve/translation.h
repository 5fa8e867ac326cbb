// From what a client asks for to a job's work: names are looked up in the tables of settings and
// inputs, limits held, and everything checked that can be before a weight is read.
#pragma once

#include <string>
#include <vector>

#include "host/check/generation.h"
#include "host/order/serving.h"
#include "host/serve/job_table.h"
#include "host/serve/lora_names.h"
#include "host/serve/spool.h"

namespace atelier::serve {

// Safe to use from several threads.
class Translation {
 public:
  // What is given outlives it.
  Translation(check::OpenedGeneration& opened, const order::Serving& order, const LoraNames& loras,
              const Spool& spool)
      : opened_(opened), order_(order), loras_(loras), spool_(spool) {}

  // As JobTable::Prepare.
  PreparedJob prepare(const std::string& id, const Asked& asked, const SpooledFiles& files,
                      const std::vector<lora::LoraRef>* loras) const;

 private:
  order::Settings read(const Asked& asked, const SpooledFiles& files) const;
  void check(PreparedJob& work, const Asked& asked) const;
  void name_output(order::Settings& settings, const std::string& id,
                   const std::string& format) const;
  void hold_limits(const order::Settings& settings) const;

  check::OpenedGeneration& opened_;
  const order::Serving& order_;
  const LoraNames& loras_;
  const Spool& spool_;
};

// Settings that were checked, by the names of the tables, so that they may be asked for again:
// without files, with what the schedule says where they left it open.
nlohmann::json shown_settings(const order::Settings& settings, const ModelFamily& family,
                              std::string_view variant);

}  // namespace atelier::serve
