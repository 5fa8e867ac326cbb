// Marks what libatelier_sdk.so exports.
#pragma once

#define ATELIER_API __attribute__((visibility("default")))
