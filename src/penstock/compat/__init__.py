"""Drop-in names of other systems: change the import, keep the training script.

    penstock.compat.datatrove    DatatroveFileDataset, DatatroveFolderDataset
    penstock.compat.nanochat     tokenizing_distributed_data_loader_bos_bestfit, …
    penstock.compat.zerobatch    BatchFileReader, BatchNativeLoader, write_batch_file, …

Each module gives the items that the other system gives, bit for bit, without its defects;
`docs/compat.md` lists what is different on purpose. Importing this package imports none of them,
nor torch.
"""
