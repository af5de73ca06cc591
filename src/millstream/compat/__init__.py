"""Drop-in replacements for other systems: change the import, keep the training script.

    millstream.compat.datatrove    DatatroveFileDataset, DatatroveFolderDataset
    millstream.compat.nanochat     tokenizing_distributed_data_loader_bos_bestfit, dataset, …
    millstream.compat.zerobatch    BatchFileReader, BatchNativeLoader, write_batch_file, …

Each module produces the same items as the other system, bit for bit, without its defects;
`docs/compat.md` lists the intentional differences. Importing this package imports neither these
modules nor torch.
"""
