// The tables of the family, each in a file of its own; their rows live as long as the process.
#pragma once

#include <span>
#include <string_view>

#include "atelier/component.h"
#include "atelier/input.h"
#include "atelier/schedule.h"

namespace wan {

inline constexpr std::string_view kTextExperts = "wan2.2-t2v-a14b",
                                  kImageExperts = "wan2.2-i2v-a14b", kSmallText = "wan2.1-t2v-1.3b",
                                  kText = "wan2.1-t2v-14b", kKrea = "wan2.1-t2v-14b-krea",
                                  kSmallVace = "wan2.1-vace-1.3b", kVace = "wan2.1-vace-14b",
                                  kVaceExperts = "wan2.2-vace-a14b", kAnyDriven = "*-animate2-*",
                                  kImages = "wan2.1-i2v-14b", kShown = "wan2.1-i2v-*b",
                                  kDancers = "wan-dancer-*";

std::span<const atelier::InputSpec> input_table();
std::span<const atelier::EncodeStage> stage_table();
std::span<const atelier::ScheduleDefaults> schedule_table();
atelier::ScheduleDefaults training_schedule();

}  // namespace wan
